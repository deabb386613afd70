import io

from rich.table import Table

from mlpip_bench.utils.console import PlainConsole, labeled
from mlpip_bench.utils.progress import ConsoleReporter

ODD = "a [bold] b [/] [link=x] :smile: \x1b[31m \udcff 12"
SHOWN = r"a [bold] b [/] [link=x] :smile: \x1b[31m \udcff 12"


def test_text_is_shown_as_it_is_wherever_it_stands():
    screen = io.StringIO()
    console = PlainConsole(file=screen, width=200, force_terminal=True, color_system=None)
    table = Table("column [/]")
    table.add_row(ODD)
    console.print(table)
    console.print(ODD)
    console.print(labeled("error:", ODD, "bold red"))
    ConsoleReporter(console).say(ODD)
    assert screen.getvalue().count(SHOWN) == 4
    assert "column [/]" in screen.getvalue()
    assert "\x1b[31m" not in screen.getvalue()


def test_bars_show_titles_and_notes_as_they_are():
    screen = io.StringIO()
    console = PlainConsole(file=screen, width=200, force_terminal=True, color_system=None)
    with ConsoleReporter(console).stage("[bold] title [/]", 2) as step:
        step(1, "note [/]")
    assert "[bold] title [/]" in screen.getvalue()
    assert "note [/]" in screen.getvalue()
