//! Runs in the background on the CPU plugin, inline and with timelines; threads and their processors; Ctrl-C; seeds.

use crate::support::{
    Case, DONE, Folder, cases, command, devbay, finish, pjrt_plugin, root, run_again,
    wait_until_it_takes_signals,
};
use devbay_host::internals::core::program::text;
use devbay_host::{ErrorKind, Model, Run, RunOptions, Runtime, Session, Tensor, arrays};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(60);

fn runtime(threads: usize, streams: &str) -> Runtime {
    let options =
        Runtime::builder().threads(threads).link(devbay_plugin_cpu::PLUGIN).option("cpu", "streams", streams);
    options.build().unwrap()
}

/// Returns a small trained model with an input and its expected result.
fn mnist() -> Case {
    cases().into_iter().find(|case| case.name == "mnist_cnn case 0").expect("a model of the repository's")
}

type Named = Vec<(String, Tensor)>;

fn start(session: &Session, inputs: &Named) -> Run {
    let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    session.run_async(&given, &RunOptions::default()).unwrap()
}

#[test]
fn runs_in_the_background_give_the_bits_of_a_lone_run() {
    let case = mnist();
    let (model, inputs) = (Model::load(&case.model).unwrap(), arrays::read_npz(&case.inputs).unwrap());
    let lone = runtime(1, "inline");
    let session = Session::new(&model, &lone.devices()[0]).unwrap();
    let expected = start(&session, &inputs).wait().unwrap();
    for (threads, streams) in [(1, "async"), (2, "async"), (3, "inline")] {
        let runtime = runtime(threads, streams);
        let session = Session::new(&model, &runtime.devices()[0]).unwrap();
        let runs: Vec<Run> = (0..40).map(|_| start(&session, &inputs)).collect();
        for (i, run) in runs.iter().enumerate() {
            // Every third run is cancelled, if it has not ended yet; the others are unaffected.
            if i % 3 == 0 {
                run.cancel();
            }
        }
        for (i, run) in runs.iter().enumerate() {
            match run.wait_timeout(SOON).expect("the run ends") {
                Ok(found) => assert_eq!(found[0].bytes(), expected[0].bytes(), "{threads} {streams} {i}"),
                Err(error) => {
                    assert!(i % 3 == 0 && error.kind() == ErrorKind::Cancelled, "{streams} {i}: {error}");
                }
            }
        }
    }
}

/// Returns consecutive products of square matrices.
fn products(n_products: usize, extent: usize) -> String {
    let ty = format!("f32[{extent},{extent}]");
    let mut source = format!("devbay-program 1\n\nprogram \"p\"(%v0: {ty}) {{\n");
    for i in 0..n_products {
        source += &format!("%v{}: {ty} = MatMul@13(%v{i}, %v{i})\n", i + 1);
    }
    source + &format!("return %v{n_products}\n}}\n")
}

/// Launches that keep the stream's thread busy, so that a run is cancelled among them.
#[test]
fn a_run_is_cancelled_while_a_stream_works() {
    let model = Model::from_program(text::parse(&products(40, 500)).unwrap());
    let inputs =
        vec![("v0".to_owned(), Tensor::from_elements(&[500, 500], &vec![0.001f32; 250_000]).unwrap())];
    let runtime = runtime(2, "async");
    let session = Session::new(&model, &runtime.devices()[0]).unwrap();
    let expected = start(&session, &inputs).wait().unwrap();
    let at_rest = runtime.memory();
    for _ in 0..3 {
        let run = start(&session, &inputs);
        std::thread::sleep(Duration::from_millis(2));
        run.cancel();
        let error = run.wait_timeout(SOON).expect("the run ends").err();
        assert_eq!(error.map(|error| error.kind()), Some(ErrorKind::Cancelled));
        let next = start(&session, &inputs).wait_timeout(SOON).expect("the run ends").unwrap();
        assert_eq!(next[0].bytes(), expected[0].bytes());
    }
    assert_eq!(runtime.memory(), at_rest, "a run that ended early keeps nothing");
}

#[cfg(target_os = "linux")]
#[test]
#[expect(clippy::print_stdout, reason = "says that it ran, for run_again")]
fn an_idle_runtime_uses_no_processor_time() {
    fn used() -> Duration {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is room for the result.
        assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) }, 0);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }
    const NAME: &str = "runs::an_idle_runtime_uses_no_processor_time";
    if std::env::var_os("DEVBAY_TEST_IDLE").is_none() {
        return run_again(NAME, |child| {
            child.env("DEVBAY_TEST_IDLE", "1");
        });
    }
    let case = mnist();
    let (model, inputs) = (Model::load(&case.model).unwrap(), arrays::read_npz(&case.inputs).unwrap());
    let runtimes = [runtime(4, "inline"), runtime(4, "async")];
    for runtime in &runtimes {
        let session = Session::new(&model, &runtime.devices()[0]).unwrap();
        let runs: Vec<Run> = (0..50).map(|_| start(&session, &inputs)).collect();
        assert!(runs.iter().all(|run| run.wait().is_ok()));
    }
    // Workers look for more work for a while first.
    std::thread::sleep(Duration::from_millis(50));
    let before = used();
    std::thread::sleep(Duration::from_millis(200));
    let while_idle = used() - before;
    // A spinning thread would use 200 ms.
    assert!(while_idle < Duration::from_millis(20), "{while_idle:?} of processor time while idle");
    println!("{DONE}");
}

#[test]
fn processors_are_chosen_or_refused() {
    let case = mnist();
    let run = |affinity: &str| {
        let mut command = command();
        command.arg("run").arg(&case.model).arg("--input").arg(&case.inputs);
        crate::support::finish(command.args(["--threads", "3", "--affinity", affinity]))
    };
    run("0").expect(0);
    run("99999").expect(2).says(&["processor 99999 is none that this process may use: 0"]);
    run("0,one").expect(2).says(&["invalid value 'one' for '--affinity <LIST>'"]);
    run("").expect(2);
}

#[test]
fn memory_is_reported() {
    let case = mnist();
    let mut command = command();
    command.arg("run").arg(&case.model).arg("--input").arg(&case.inputs).args(["--json", "-v"]);
    let finished = crate::support::finish(&mut command).expect(0).says(&["memory of cpu:0: ", "at most"]);
    let memory = &finished.json()["memory"][0];
    assert_eq!(memory["device"], "cpu:0");
    assert!(memory["bytes_peak"].as_u64() >= memory["bytes_in_use"].as_u64(), "{memory}");
    devbay(["run", "--help"]).expect(0).prints(&["--affinity <LIST>"]);
}

/// Waits until a child's stream has used a tenth of a second of processor time. By then all work of a run without control
/// flow is enqueued, because none of it waits for the host.
#[cfg(target_os = "linux")]
fn wait_until_the_device_works(child: &mut Child) {
    let tasks = format!("/proc/{}/task", child.id());
    let begin = Instant::now();
    loop {
        let ticks = std::fs::read_dir(&tasks).unwrap().filter_map(|task| {
            let stat = std::fs::read_to_string(task.ok()?.path().join("stat")).ok()?;
            // The name is in parentheses and truncated to 15 bytes; the user time is the 14th field.
            let (name, rest) = stat.rsplit_once(") ")?;
            let is_stream = name.ends_with("(devbay-cpu-stre");
            rest.split(' ').nth(11)?.parse::<u64>().ok().filter(|_| is_stream)
        });
        // Linux always counts a hundred ticks a second.
        if ticks.max() >= Some(10) {
            return;
        }
        assert!(child.try_wait().unwrap().is_none() && begin.elapsed() < SOON, "expected a device at work");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn interrupt(child: &Child) {
    // SAFETY: the child was not waited for, so its id was not reused.
    assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGINT) }, 0);
}

#[cfg(target_os = "linux")]
#[test]
fn an_interrupt_ends_a_bench_and_a_run_writes_nothing() {
    let case = mnist();
    let mut bench = command();
    bench.arg("bench").arg(&case.model).args(["--seconds", "3000"]);
    let mut child = bench.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until_it_takes_signals(&mut child);
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{err}");
    // The run was cancelled, or the work before it, or the measurement after some runs.
    assert!(err.contains("was cancelled") || err.contains("interrupted: the figures"), "{err}");

    let folder = Folder::new();
    let mut child = endless(&folder).stderr(Stdio::piped()).spawn().unwrap();
    wait_until_it_takes_signals(&mut child);
    interrupt(&child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let left: Vec<_> =
        std::fs::read_dir(folder.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "model and inputs alone: {left:?}");
}

/// A device's enqueued work cannot be withdrawn, so a cancelled run waits for it for seconds, unless interrupted again.
#[cfg(target_os = "linux")]
#[test]
fn a_second_interrupt_ends_the_command_at_once() {
    let folder = Folder::new();
    let model = folder.write("products.devbay", products(100, 1000));
    let mut command = command();
    command.arg("run").arg(&model).args(["--random", "1", "--plugin-option", "cpu.streams=async"]);
    let mut child = command.args(["--threads", "1"]).stderr(Stdio::piped()).spawn().unwrap();
    wait_until_it_takes_signals(&mut child);
    wait_until_the_device_works(&mut child);
    // Two signals that arrive before the command checks count as one.
    while child.try_wait().unwrap().is_none() {
        interrupt(&child);
        std::thread::sleep(Duration::from_millis(100));
    }
    let output = child.wait_with_output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{err}");
    assert!(!err.contains("the run was cancelled"), "it waited: {err}");
}

/// `nohup`, and shells without job control, start background commands this way.
#[cfg(target_os = "linux")]
#[test]
fn an_interrupt_that_was_ignored_from_the_start_stays_so() {
    let case = mnist();
    let ignoring = "trap '' INT; exec \"$0\" \"$@\"";
    let bench = command();
    let mut shell = std::process::Command::new("sh");
    shell
        .args(["-c", ignoring])
        .arg(bench.get_program())
        .arg("bench")
        .arg(&case.model)
        .args(["--seconds", "1"]);
    let set = bench.get_envs().filter_map(|(name, value)| Some((name, value?)));
    shell.envs(set);
    let mut child = shell.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until_it_takes_signals(&mut child);
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Returns a run that does not end, with outputs to write.
fn endless(folder: &Folder) -> std::process::Command {
    const LOOP: &str = "devbay-program 1\n\nprogram \"loop\"(%n: i64[], %x: f32[4]) {\n  \
        %y: f32[4] = Loop@25(%n, _, %x) body(%i: i64[], %go: bool[], %s: f32[4]) {\n    \
        %t: f32[4] = Add@14(%s, %x)\n    return %go, %t\n  }\n  return %y\n}\n";
    let model = folder.write("loop.devbay", LOOP);
    let inputs = folder.path("inputs.npz");
    let n = Tensor::from_elements(&[], &[i64::MAX]).unwrap();
    let x = Tensor::from_elements(&[4], &[1.0f32; 4]).unwrap();
    arrays::write_npz(&inputs, &[("n", &n), ("x", &x)]).unwrap();
    let mut command = command();
    let arguments: [&Path; 4] = [&model, Path::new("--input"), &inputs, Path::new("--output")];
    command.arg("run").args(arguments).arg(folder.path("outputs.npz")).stdout(Stdio::null());
    command
}

/// Adds random numbers to its input.
const NOISE: &str = r#"devbay-program 1

program "noise"(%x: f32[n], %devbay.seed: u32[4]) {
  %shape = Shape@25(%x)
  %noise: f32[n] = devbay.Philox@1(%devbay.seed, %shape) {stream = 0}
  %y: f32[n] = Add@14(%x, %noise)
  return %y
}
"#;

#[test]
fn a_seed_is_an_option_and_no_input() {
    let folder = Folder::new();
    let model = folder.write("noise.devbay", NOISE);
    let run = |of: &[&str]| {
        let mut command = command();
        command.arg(of[0]).arg(&model).args(&of[1..]).args(["--device", "cpu", "--shape", "n=3"]);
        finish(&mut command).expect(0)
    };
    let values = |seed: &[&str]| {
        let report = run(&[&["run", "--random", "--json"], seed].concat()).json();
        report["outputs"][0]["first"].to_string()
    };
    assert_eq!(values(&["--seed", "1"]), values(&["--seed", "1"]));
    assert_ne!(values(&["--seed", "1"]), values(&["--seed", "2"]));
    assert_ne!(values(&[]), values(&[]), "the chance of equal seeds is 2^-64");
    // A compiler's device draws the same bits.
    if let Some((plugin, _)) = pjrt_plugin() {
        let mut command = command();
        command.arg("run").arg(&model).args(&plugin).args(["--device", "pjrt:0", "--no-fallback"]);
        command.args(["--random", "--shape", "n=3", "--seed", "1", "--json"]);
        let report = finish(&mut command).expect(0).json();
        assert_eq!(report["outputs"][0]["first"].to_string(), values(&["--seed", "1"]));
    }
    let described = run(&["inspect", "--json"]).json();
    assert_eq!(described["inputs"].as_array().map(Vec::len), Some(1), "{described}");
    // Both sides draw the same numbers.
    let sides = ["--random", "--a", "cpu", "--b", "cpu,no-pass=all"];
    let mut command = command();
    command.arg("diff").arg(&model).args(sides).args(["--shape", "n=3"]);
    finish(&mut command).expect(0);
}

#[test]
fn a_model_of_texts_takes_and_gives_them() {
    let folder = Folder::new();
    let model = root().join("models/sklearn/text");
    let run = |command: &str, arguments: &[&str]| {
        let mut run = self::command();
        finish(run.arg(command).arg(model.join("model.onnx")).args(arguments))
    };
    let (given, written) = (model.join("case0.inputs.npz"), folder.path("outputs.npz"));
    let [given, written] = [given, written].map(|path| path.display().to_string());
    run("run", &["--input", &given, "--output", &written]).expect(0).prints(&["string[15]", "\"weather\""]);
    // What was written is read again.
    run("run", &["--input", &given, "--compare", &written]).expect(0).prints(&["label", "match"]);

    let numbers = folder.path("numbers.npz");
    let number = Tensor::from_elements(&[2, 1], &[1.0f32, 2.0]).unwrap();
    arrays::write_npz(&numbers, &[("X", &number)]).unwrap();
    let numbers = numbers.display().to_string();
    run("run", &["--input", &numbers]).expect(5).says(&["input `X` string[?,1] is given as f32[2,1]"]);
    run("run", &["--random"]).expect(2).says(&["takes its inputs from --input"]);
    run("ops", &[]).expect(4).says(&["has no plan of the whole"]);
    run("inspect", &[]).expect(0).says(&["the segments that devices run"]);
}
