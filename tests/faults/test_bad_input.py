"""Bad input of every command: status 2 and one clear message."""

import pytest

TINY = ["--iterations", 4, "--test-tasks", 4, "--set", "validation_tasks=2", "--set", "tasks_per_batch=1"]

# Of a run of prototypical networks on omni5w1s.
RUN = {
    "method": (["--methods", "versaa"], ["unknown method 'versaa'", "'versa'", "maml"]),
    "bench": (["--bench", "mini5w5"], ["unknown bench 'mini5w5'", "mini5w5s"]),
    "bench of no grammar": (["--bench", "imagenet"], ["unknown bench", "way"]),
    "protocol": (["--protocols", "acuracy"], ["unknown protocol 'acuracy'", "'accuracy'"]),
    "norm": (["--norm", "metabm"], ["unknown norm", "'metabn'"]),
    "preset": (["--preset", "fast"], ["unknown preset", "quick"]),
    "source": (["--source", "reel"], ["unknown source", "'real'"]),
    "overwrite": (["--overwrite", "yes"], ["unknown overwrite", "always"]),
    "way": (["--bench", "omni900w1s"], ["way 900 needs 900", "has 640"]),
    "shots and queries": (
        ["--bench", "omni5w10s"],
        ["shots (10) plus queries (15) need 25 images", "Use at most 5 shots or --queries 10"],
    ),
    "queries": (["--queries", "0"], ["--queries must be at least 1"]),
    "iterations": (["--iterations", "-1"], ["iterations must be at least 0 and finite"]),
    "seeds": (["--seeds", "0,x"], ["--seeds takes whole numbers"]),
    "no seeds": (["--seeds", ""], ["at least one seed"]),
    "seed too large": (["--seeds", "99999999999999999999999"], ["seeds must be from 0"]),
    "seed below zero": (["--seeds=-1"], ["seeds must be from 0"]),
    "way beyond any data": (["--bench", "omni99999999999999999999w1s"], ["at most 10000"]),
    "shot beyond the images": (["--bench", "omni5w25s"], ["class 'glyph0001' has 20", "Use at most 15 shots"]),
    "train queries": (["--set", "train_queries=20"], ["Use at most --set train_queries=19"]),
    "upper case": (["--bench", "OMNI5W1S"], ["Did you mean 'omni5w1s'"]),
    "set twice": (["--set", "iterations=5"], ["iterations is set twice, by --iterations and by --set"]),
    "empty results": (["--results", ""], ["--results needs the name of a folder"]),
    "rate that is no number": (["--set", "learning_rate=nan"], ["learning_rate must be a number"]),
    "negative scale": (["--set", "protonets.scale=-1"], ["scale must be positive"]),
    "setting": (["--set", "protonets.scal=3"], ["unknown setting of protonets 'scal'", "'scale'"]),
    "setting's method": (["--set", "mmal.test_steps=3"], ["unknown method in --set 'mmal'", "'maml'"]),
    "setting of an absent method": (["--set", "maml.test_steps=3"], ["'maml' is not among --methods protonets"]),
    "setting without a value": (["--set", "protonets.scale"], ["--set takes [METHOD.]NAME=VALUE"]),
    "setting of another type": (["--set", "protonets.scale=big"], ["protonets.scale must be a number"]),
    "device": (["--device", "tpu"], ["device must be auto, cpu, mps, cuda"]),
    "no method": (["--methods", ","], ["--methods takes names", "Leave it out for the usual"]),
    "split": (["--data", "omni.split=alphabet"], ["omni.split must be one of random, vinyals"]),
    "no stand-in": (["--bench", "tiny5w1s"], ["tiny has no stand-in"]),
    "data root": (["--source", "real", "--data-root", "/does/not/exist"], ["the data folder must exist"]),
    "inner rate below zero": (["--methods", "maml", "--set", "maml.inner_rate=-1"], ["inner rates must be positive"]),
    "more inner rates than steps": (
        ["--methods", "maml", "--set", "maml.inner_rate=0.1,0.2"],
        ["there are 2 inner rates for at most 1 steps"],
    ),
    "inner engine": (
        ["--methods", "maml", "--set", "maml.inner_engine=hiher"],
        ["maml.inner_engine must be one of native, higher"],
    ),
    "first order": (
        ["--methods", "maml", "--set", "maml.first_order=yes"],
        ["maml.first_order must be true or false"],
    ),
    "no threads": (["--cpus", "0"], ["--cpus must be at least 1"]),
    "more threads than cores": (["--cpus", "1000000000000"], ["--cpus must be at least 1 and at most"]),
    "more jobs than a machine has": (["--jobs", "100000"], ["--jobs must be at least 1 and at most 4096"]),
    "home of nobody": (["--results", "~nosuchuser/x"], ["none is known for '~nosuchuser'", "Write the whole path"]),
    "data at nobody's home": (["--data-root", "~nosuchuser/x"], ["none is known for '~nosuchuser'"]),
    "zero byte": (["--results", "a\0b"], ["may not have a zero byte"]),
    "long name": (["--results", "x" * 300], ["each name in it 255"]),
    "long path": (["--results", "x/" * 3000], ["a path may have 3500 bytes"]),
    "long option file": (["--config", "x" * 300], ["each name in it 255"]),
    "results in a file": (["--results", "/dev/null/x"], ["cannot write /dev/null/x", "Choose a folder"]),
    "way of 5,000 digits": (["--bench", f"omni{'9' * 5000}w1s"], ["got one of 5000 digits"]),
    "thousands of minus signs": (["--set", f"train_queries={'-' * 5000}1"], ["train_queries must be a whole number"]),
    "hundreds of minus signs": (["--set", f"train_queries={'-' * 900}1"], ["train_queries must be"]),
    "hundreds of parentheses": (["--set", f"train_queries={'(' * 900}1"], ["train_queries must be a whole number"]),
    "a sum without end": (["--set", f"train_queries={'1j+' * 5000}1j"], ["train_queries must be a whole number"]),
    "methods with spaces": (["--methods", "versa", "maml"], ["with commas between them: --methods NAME,NAME"]),
    "values for a sweep": (
        ["--set", "learning_rate=1e-3,1e-4"],
        ["learning_rate must be a number; got (0.001, 0.0001)", "go to --sweep learning_rate=VALUE,VALUE"],
    ),
    "epochs": (["--epochs", "3"], ["No such option: --epochs", "--iterations N"]),
    "batch norm": (["--norm", "batchnorm"], ["unknown norm 'batchnorm'", "`transductive`", "`running`"]),
    "seeds from to": (["--seeds", "0-4"], ["for example 0,1,2,3,4; got '0-4'"]),
    "another data set": (["--bench", "fc5w1s"], ["no data set 'fc' is installed", "docs/my-images.md"]),
    "data of one's own": (["--bench", "photos3w2s"], ["no data set 'photos' is installed", "docs/my-images.md"]),
    "no jobs": (["--jobs", "0"], ["--jobs must be at least 1"]),
    "jobs and a cluster": (["--jobs", "2", "--ray", "local"], ["Leave one out"]),
    "nobody listens": (["--ray", "127.0.0.1:1"], ["127.0.0.1:1 cannot be reached", "ray start"]),
    "sweep without values": (["--sweep", "protonets.scale="], ["--sweep takes [METHOD.]NAME=VALUE,VALUE"]),
    "sweep with an empty value": (["--sweep", "learning_rate=0.1,,0.2"], ["none may be empty"]),
    "sweep of nobody": (["--sweep", ".scale=1"], ["--sweep names a setting, or METHOD.NAME"]),
    "set by --set twice": (["--set", "learning_rate=1", "--set", "learning_rate=2"], ["learning_rate is set twice"]),
    "backbone's setting twice": (["--backbone", "conv4,channels=8,channels=16"], ["channels is set twice"]),
    "data option twice": (["--data", "omni.split=vinyals", "--data", "omni.split=random"], ["split is set twice"]),
    "data root that is not there": (
        ["--data-root", "/no/such/folder"],
        ["the data folder must exist; /no/such"],
    ),
    "swept and set": (["--sweep", "iterations=5,6"], ["iterations is set twice"]),
    "sweep of an absent method": (["--sweep", "maml.test_steps=1,3"], ["'maml' is not among --methods protonets"]),
    "no bench": (["--bench", ","], ["a run needs a bench"]),
    "no norm": (["--norm", ""], ["a run needs at least one norm"]),
    "way of nothing": (["--bench", "omni0w1s"], ["way of a bench is at least 2; 'omni0w1s' has 0"]),
    "shot of nothing": (["--bench", "omni5w0s"], ["shot of a bench is at least 1"]),
    "no validation": (["--set", "validate_every=0"], ["validate_every must be positive"]),
    "infinite rate": (["--set", "learning_rate=1e999"], ["learning_rate must be positive and finite"]),
    "list for a number": (["--set", "train_queries=[1]"], ["train_queries must be a whole number; got [1]"]),
    "setting without a name": (["--set", "=3"], ["--set takes [METHOD.]NAME=VALUE"]),
    "method of another kind of task": (
        ["--bench", "linear5s"],
        ["linear5s is regression and protonets handles classification", "Methods for linear5s"],
    ),
    "protocol of another kind of task": (
        ["--protocols", "posterior"],
        ["a protocol must apply to bench and method", "list protocols"],
    ),
    "precision": (["--precision", "fp8"], ["unknown precision 'fp8'", "bf16"]),
    "precision of a GPU": (["--precision", "tf32", "--device", "cpu"], ["tf32 is a matter of CUDA GPUs"]),
    "compile": (["--compile", "fast"], ["unknown compile 'fast'", "default"]),
    "resize": (["--data", "omni.resize=cubic"], ["omni.resize must be one of nearest, antialias"]),
    "views": (
        ["--bench", "views1s", "--methods", "versa", "--data", "views.source=coil"],
        ["views.source must be one of auto, shapenet, coil100"],
    ),
    "angles": (
        ["--bench", "views1s", "--methods", "versa", "--data", "views.angles=radians"],
        ["views.angles must be one of sincos, degrees"],
    ),
    "iterations that are no number": (["--iterations", "many"], ["Invalid value for '--iterations'", "valid integer"]),
    "an option that there is not": (["--sed", "3"], ["No such option: --sed", "--seed"]),
    "an option without its value": (["--seed"], ["Option '--seed' requires an argument"]),
}

# Of other commands; {empty} is an empty folder, {records} one with a record, and {file} a file of JSON.
OTHERS = {
    "command": (["rum"], ["No such command 'rum'", "run"]),
    "run of nothing": (["run"], ["a run needs a bench"]),
    "table of no records": (
        ["table", "--results", "{empty}"],
        ["tables are made from records", "{empty}", "Make some"],
    ),
    "table of no folder": (["table", "--results", ""], ["--results needs the name of a folder"]),
    "format of a table": (
        ["table", "--results", "{records}", "--format", "html"],
        ["'html' is not one of", "markdown"],
    ),
    "bench of a table": (
        ["table", "--results", "{records}", "--bench", "mini5w5s"],
        ["no record matches --bench mini5w5s", "There are: linear5s exact_linear"],
    ),
    "method of a table": (
        ["table", "--results", "{records}", "--methods", "versaa"],
        ["no record matches", "exact_linear"],
    ),
    "argument of a table": (["table", "more"], ["(more)"]),
    "tables of two kinds": (["table", "--paired", "--timing"], ["tables of two kinds", "Leave one of them out"]),
    "against without a kind": (["table", "--against", "versa"], ["--against versa alone", "Add --paired or --timing"]),
    "nothing to pair": (
        ["table", "--results", "{records}", "--paired"],
        ["needs two methods measured in the same way"],
    ),
    "against an unknown method": (
        ["table", "--results", "{records}", "--paired", "--against", "versaa"],
        ["unknown method for --against 'versaa'", "exact_linear"],
    ),
    "no timings": (["table", "--results", "{records}", "--timing"], ["records of the protocol timing; there are none"]),
    "benchmarks without timing": (["table", "--benchmark-json", "{file}"], ["--benchmark-json", "Add --timing"]),
    "benchmarks of a choice": (
        ["table", "--timing", "--benchmark-json", "{file}", "--bench", "omni5w1s"],
        ["--benchmark-json is shown as it is", "Leave out --bench"],
    ),
    "other JSON for benchmarks": (["table", "--timing", "--benchmark-json", "{file}"], ["{file} is none", "tox -e"]),
    "a folder for benchmarks": (["table", "--timing", "--benchmark-json", "{empty}"], ["{empty} cannot be read"]),
    "figures of no records": (["figures", "--results", "{empty}"], ["figures are made from records", "Make some"]),
    "format of figures": (["figures", "--format", "png"], ["No such option: --format"]),
    "check of nothing": (["check"], ["names of methods, or --all; got neither"]),
    "check of all and one": (["check", "--all", "versa"], ["names of methods, or --all; got both"]),
    "check of an unknown method": (["check", "versaa"], ["unknown method 'versaa'", "'versa'"]),
    "data of no folder": (["data", "verify"], ["no data set is found", "--data-root"]),
    "data in a folder that is none": (["data", "verify", "--data-root", "{file}"], ["{file} is not a folder"]),
    "report in a file's place": (["report", "--results", "{records}", "--output", "~nosuchuser/x"], ["'~nosuchuser'"]),
    "meshes of nobody": (["data", "prepare", "shapenet", "--from", "~nosuchuser/x"], ["'~nosuchuser'"]),
    "data named as list does": (["data", "verify", "omny"], ["unknown data set 'omny'", "'omni'"]),
    "a name too long to compare": (["compare", "x" * 300, "{records}"], ["each name in it 255"]),
    "data of an unknown name": (["data", "verify", "--data", "omny"], ["unknown data set 'omny'", "'omni'"]),
    "data that is not there": (
        ["data", "verify", "--data", "omni", "--data-root", "{empty}"],
        ["Omniglot is not in {empty}", "images_background"],
    ),
    "data to prepare": (["data", "prepare", "omni", "--from", "{empty}"], ["unknown data set to prepare 'omni'"]),
    "meshes without a folder for views": (["data", "prepare", "shapenet", "--from", "{empty}"], ["pass --to"]),
    "meshes of no folder": (
        ["data", "prepare", "shapenet", "--from", "{file}", "--to", "{empty}/views"],
        ["--from must be the folder", "{file} is not a folder"],
    ),
    "jobs": (
        ["data", "prepare", "shapenet", "--from", "{records}", "--to", "{empty}/views", "--jobs", "0"],
        ["--jobs must be at least 1"],
    ),
    "list": (["list", "method"], ["No such command 'method'", "methods"]),
    "argument of a list": (["list", "methods", "more"], ["(more)"]),
}


def is_one_message(output: str) -> bool:
    """Ours begin with ``error:``; what the parser of options says is in a box, whose title is ``Error``."""
    return output.count("error:") + output.count("─ Error ─") == 1 and "Traceback" not in output


@pytest.mark.parametrize("case", RUN)
def test_bad_input_of_a_run(case, tmp_path, call, tell, monkeypatch):
    monkeypatch.setenv("RAY_CLIENT_MODE", "0")  # its default; Ray leaves it at 1 where it was given an address
    arguments, says = RUN[case]
    base = ["--methods", "protonets", "--bench", "omni5w1s", "--source", "procedural", "--results", tmp_path, *TINY]
    result = call("run", *base, *arguments)
    assert result.exit_code == 2, result.output
    assert is_one_message(result.output), result.output
    for text in says:
        assert text in result.output
    assert not (tmp_path / "records").exists()
    tell("bad inputs refused", 1)


@pytest.fixture(scope="module")
def places(tmp_path_factory, call):
    folder = tmp_path_factory.mktemp("places")
    found = {name: folder / name for name in ("empty", "records", "file")}
    found["empty"].mkdir()
    found["file"].write_text("{}")
    small = ["--iterations", 1, "--test-tasks", 2, "--set", "validation_tasks=2", "--protocols", "nll"]
    result = call("run", "--bench", "linear5s", "--methods", "exact_linear", "--results", found["records"], *small)
    assert result.exit_code == 0
    return found


@pytest.mark.parametrize("case", OTHERS)
def test_bad_input_of_other_commands(case, places, call, tell):
    arguments, says = OTHERS[case]
    result = call(*(argument.format_map(places) for argument in arguments))
    assert result.exit_code == 2, result.output
    assert is_one_message(result.output), result.output
    for text in says:
        assert text.format_map(places) in result.output
    tell("bad inputs refused", 1)


@pytest.mark.skipif("__import__('torch').cuda.is_available()", reason="there is a GPU here")
def test_cuda_where_there_is_none(run, tmp_path, one_message):
    one_message(run(tmp_path, "--device", "cuda"), "--device cuda needs a CUDA GPU")
