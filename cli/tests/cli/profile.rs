//! Timelines: the file and summary of `--profile`, and recordings of sessions.

use crate::plans::read_xml;
use crate::support::{Case, Folder, cases, command, finish};
use devbay_host::internals::core::passes::Switches;
use devbay_host::internals::core::plan::section::Section;
use devbay_host::internals::core::plan::tasks::Policy;
use devbay_host::internals::core::program::text;
use devbay_host::trace::{Recorder, Summary, Timeline, write_chrome};
use devbay_host::{InputView, Model, PlanOptions, Run, RunOptions, Runtime, Session, Tensor, arrays};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// Branches, control flow as a step and as a stage, and nodes that are planned at run time.
const STAGES: &str = r#"devbay-program 1

program "stages"(%x: f32[64,64], %n: i64[], %sure: bool[]) {
  %a: f32[64,64] = Abs@13(%x) as "left"
  %b: f32[64,64] = Neg@13(%a) as "more left"
  %c: f32[64,64] = Exp@13(%x) as "right"
  %d: f32[64,64] = Sqrt@13(%c) as "more right"
  %e: f32[64,64] = Add@14(%b, %d) as "both"
  %f: f32[64,64] = Loop@25(%n, _, %e) as "repeated" body(%i: i64[], %go: bool[], %s: f32[64,64]) {
    %t: f32[64,64] = Add@14(%s, %x) as "again"
    %u: f32[64,64] = Neg@13(%t) as "and again"
    return %go, %u
  }
  %where: i64[2,?] = NonZero@13(%f) as "where"
  %either: i64[2,?] = If@25(%sure) as "either" then_branch() {
    %twice: i64[2,?] = Add@14(%where, %where) as "twice"
    return %twice
  } else_branch() {
    %less: i64[2,?] = Neg@13(%where)
    return %less
  }
  return %f, %either
}
"#;

/// A trace as a viewer reads it, with its format checked.
struct Trace {
    slices: Vec<Slice>,
    /// By id: the begin and end of an arrow.
    flows: BTreeMap<(String, u64), [(Place, f64); 2]>,
    processes: BTreeMap<u64, String>,
    threads: BTreeMap<Place, String>,
    lost: u64,
}

/// Process and thread.
type Place = (u64, u64);

#[derive(Clone, Debug)]
struct Slice {
    name: String,
    cat: String,
    place: Place,
    begin: f64,
    end: f64,
    run: u64,
    args: Value,
}

/// Times are printed in thousandths of microseconds.
const ROUNDING: f64 = 0.000_6;

impl Slice {
    fn has_inside(&self, other: &Slice) -> bool {
        self.place == other.place && self.begin <= other.begin + ROUNDING && other.end <= self.end + ROUNDING
    }
}

impl Trace {
    /// Reads a trace, and checks the format's requirements for each event.
    fn read(json: &[u8]) -> Self {
        let json: Value = serde_json::from_slice(json).expect("JSON");
        let mut trace = Self {
            slices: Vec::new(),
            flows: BTreeMap::new(),
            processes: BTreeMap::new(),
            threads: BTreeMap::new(),
            lost: json["otherData"]["lost_events"].as_u64().expect("a number"),
        };
        let mut open: BTreeMap<(String, u64), (Place, f64)> = BTreeMap::new();
        for event in json["traceEvents"].as_array().expect("a list of events") {
            let text =
                |key: &str| event[key].as_str().unwrap_or_else(|| panic!("no {key}: {event}")).to_owned();
            let number = |key: &str| event[key].as_u64().unwrap_or_else(|| panic!("no {key}: {event}"));
            let time = |key: &str| event[key].as_f64().unwrap_or_else(|| panic!("no {key}: {event}"));
            let (name, place) = (text("name"), (number("pid"), number("tid")));
            match text("ph").as_str() {
                "M" => match name.as_str() {
                    "process_name" => {
                        let name = event["args"]["name"].as_str().expect("a name").to_owned();
                        assert!(trace.processes.insert(place.0, name).is_none(), "two names: {event}");
                    }
                    "thread_name" => {
                        let name = event["args"]["name"].as_str().expect("a name").to_owned();
                        assert!(trace.threads.insert(place, name).is_none(), "two names: {event}");
                    }
                    "thread_sort_index" => assert!(event["args"]["sort_index"].is_u64(), "{event}"),
                    other => panic!("unknown metadata {other}"),
                },
                "X" => {
                    let (begin, dur) = (time("ts"), time("dur"));
                    assert!(begin >= 0.0 && dur >= 0.0 && !name.is_empty(), "{event}");
                    trace.slices.push(Slice {
                        name,
                        cat: text("cat"),
                        place,
                        begin,
                        end: begin + dur,
                        run: event["args"]["run"].as_u64().unwrap_or(0),
                        args: event["args"].clone(),
                    });
                }
                "s" => {
                    let before = open.insert((text("cat"), number("id")), (place, time("ts")));
                    assert!(before.is_none(), "begun twice: {event}");
                }
                "f" => {
                    assert_eq!(text("bp"), "e");
                    let key = (text("cat"), number("id"));
                    let from = open.remove(&key).unwrap_or_else(|| panic!("not begun: {event}"));
                    trace.flows.insert(key, [from, (place, time("ts"))]);
                }
                "i" => assert!(text("s") == "g" && time("ts") >= 0.0, "{event}"),
                other => panic!("unknown phase {other}"),
            }
        }
        assert!(open.is_empty(), "arrows that do not end: {open:?}");
        trace
    }

    fn of_category<'a>(&'a self, cat: &'static str) -> impl Iterator<Item = &'a Slice> {
        self.slices.iter().filter(move |slice| slice.cat == cat)
    }

    fn labels(&self, cat: &'static str) -> BTreeSet<&str> {
        self.of_category(cat).map(|slice| slice.name.as_str()).collect()
    }

    fn is_host(&self, slice: &Slice) -> bool {
        self.processes[&slice.place.0] == "host"
    }

    /// Returns the innermost launch at a time.
    fn launch_at(&self, (place, at): (Place, f64)) -> &Slice {
        let launches = self.slices.iter().filter(|slice| {
            ["kernel", "enqueue", "control"].contains(&slice.cat.as_str())
                && slice.place == place
                && slice.begin <= at + ROUNDING
                && at <= slice.end + ROUNDING
        });
        launches
            .min_by(|a, b| (a.end - a.begin).total_cmp(&(b.end - b.begin)))
            .expect("an arrow is at a launch")
    }

    /// Checks the invariants of all traces: slices nest, launches are within their task and run, arrows point forward.
    fn check(&self) {
        let mut tracks: BTreeMap<Place, Vec<&Slice>> = BTreeMap::new();
        for slice in &self.slices {
            assert!(self.processes.contains_key(&slice.place.0) && self.threads.contains_key(&slice.place));
            tracks.entry(slice.place).or_default().push(slice);
        }
        for slices in tracks.values() {
            let mut open: Vec<&Slice> = Vec::new();
            for slice in slices {
                while open.last().is_some_and(|outer| outer.end <= slice.begin + ROUNDING) {
                    open.pop();
                }
                if let Some(outer) = open.last() {
                    assert!(outer.has_inside(slice), "neither inside nor apart: {outer:?} {slice:?}");
                }
                open.push(slice);
            }
        }
        let launches =
            || self.slices.iter().filter(|slice| slice.args["op"].is_string() && self.is_host(slice));
        for launch in launches() {
            assert!(launch.run > 0, "{launch:?}");
            let around = |cat: &str| {
                let mut slices =
                    self.slices.iter().filter(|slice| slice.cat == cat && slice.run == launch.run);
                slices.any(|slice| slice.has_inside(launch))
            };
            assert!(around("run"), "in no run: {launch:?}");
            // Control flow that is a stage contains tasks, and is in none.
            assert!(launch.args["task"].is_null() || around("task"), "in no task: {launch:?}");
        }
        for ((cat, _), [from, to]) in &self.flows {
            assert!(from.1 <= to.1 + ROUNDING, "an arrow goes back: {from:?} {to:?}");
            let (maker, user) = (self.launch_at(*from), self.launch_at(*to));
            assert_eq!(maker.run, user.run, "{maker:?} {user:?}");
            assert!((user.begin - to.1).abs() < ROUNDING, "{user:?} {to:?}");
            if cat == "data" {
                assert!(maker.end <= user.begin + ROUNDING, "{maker:?} {user:?}");
                assert!(maker.end - from.1 < 0.001 + 2.0 * ROUNDING, "{maker:?} {from:?}");
            } else {
                assert_eq!((maker.cat.as_str(), &maker.name), ("enqueue", &user.name));
            }
        }
    }

    /// Returns the names of producers and consumers of data.
    fn data(&self) -> BTreeSet<(&str, &str)> {
        let data = self.flows.iter().filter(|((cat, _), _)| cat == "data");
        data.map(|(_, [from, to])| (self.launch_at(*from).name.as_str(), self.launch_at(*to).name.as_str()))
            .collect()
    }
}

fn runtime(threads: usize, streams: &str, trace: Option<&Recorder>) -> Runtime {
    let options = Runtime::builder()
        .threads(threads)
        .link(devbay_plugin_cpu::PLUGIN)
        .option("cpu", "streams", streams)
        .trace(trace.map(Recorder::sink));
    options.build().unwrap()
}

fn traced(recorder: &Recorder, tasks: Policy) -> PlanOptions {
    PlanOptions {
        tasks,
        trace: Some(recorder.clone()),
        passes: Switches::without(["fuse-elementwise"]).unwrap(),
        ..PlanOptions::default()
    }
}

/// Returns a recording as written, and its sums.
fn taken(recorder: &Recorder) -> (Trace, Summary) {
    let recording = recorder.take();
    let timeline = Timeline::of(&recording);
    let mut json = Vec::new();
    write_chrome(&mut json, &timeline).unwrap();
    (Trace::read(&json), Summary::of(&timeline))
}

fn mnist() -> Case {
    cases().into_iter().find(|case| case.name == "mnist_cnn case 0").expect("a model of the repository's")
}

/// Returns the labels of the steps of mnist's plan.
fn planned_labels() -> BTreeSet<String> {
    let runtime = runtime(1, "inline", None);
    let session = Session::new(&Model::load(&mnist().model).unwrap(), &runtime.devices()[0]).unwrap();
    let inputs = arrays::read_npz(&mnist().inputs).unwrap();
    let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let plan = session.plan_for(&given).unwrap();
    plan.sections().flat_map(|section| section.labels.to_vec()).collect()
}

fn profile(folder: &Folder, more: &[&str]) -> (crate::support::Finished, Trace) {
    let (case, path) = (mnist(), folder.path("trace.json"));
    let mut command = command();
    command.arg("run").arg(&case.model).arg("--input").arg(&case.inputs).arg("--profile").arg(&path);
    let finished = finish(command.args(more)).expect(0);
    (finished, Trace::read(&fs::read(&path).unwrap()))
}

#[test]
fn a_trained_model_on_threads() {
    let (folder, labels) = (Folder::new(), planned_labels());
    for threads in ["1", "2"] {
        let (finished, trace) = profile(&folder, &["--threads", threads]);
        trace.check();
        let found: BTreeSet<String> = trace.labels("kernel").into_iter().map(str::to_owned).collect();
        assert_eq!(found, labels, "each node is a launch");
        assert_eq!(trace.of_category("kernel").count(), labels.len(), "once");
        assert_eq!(trace.data().len(), labels.len() - 1, "each node of the chain reads the one before");
        let runs: Vec<&Slice> = trace.of_category("run").collect();
        assert!(matches!(&*runs, [run] if trace.threads[&run.place] == "main"), "{runs:?}");
        finished.prints(&[
            "OP ",
            "FusedConv ",
            "of the time of the run was not spent in kernels",
            "trace.json",
        ]);
    }
}

#[test]
fn a_trained_model_on_a_stream() {
    let (folder, labels) = (Folder::new(), planned_labels());
    let (finished, trace) =
        profile(&folder, &["--threads", "2", "--plugin-option", "cpu.streams=async", "--json"]);
    trace.check();
    let kernels: Vec<&Slice> = trace.of_category("kernel").collect();
    assert!(kernels.iter().all(|kernel| trace.processes[&kernel.place.0] == "device cpu:0"));
    let found: BTreeSet<String> = kernels.iter().map(|kernel| kernel.name.clone()).collect();
    assert_eq!((found, kernels.len()), (labels.clone(), labels.len()));
    assert_eq!(trace.labels("enqueue").len(), labels.len());
    assert_eq!(trace.flows.keys().filter(|(cat, _)| cat == "enqueue").count(), labels.len());
    assert_eq!(trace.data().len(), labels.len() - 1);
    assert_eq!(trace.labels("wait"), BTreeSet::from(["wait for stream"]));
    assert_eq!(trace.labels("copy"), BTreeSet::from(["copy in", "copy out"]));
    assert!(trace.of_category("copy").all(|copy| copy.args["bytes"].as_u64() > Some(0)));
    let profile = &finished.json()["profile"];
    assert_eq!((&profile["runs"], &profile["unmarked_launches"]), (&1.into(), &0.into()));
    let share = profile["not_in_kernels"].as_f64().unwrap();
    assert!((0.0..1.0).contains(&share), "{share}");
    let ops = profile["ops"].as_array().unwrap();
    let sum = |key: &str| ops.iter().map(|op| op[key].as_f64().unwrap()).sum::<f64>();
    assert_eq!(
        (sum("launches"), sum("total_ns")),
        (labels.len() as f64, profile["kernel_ns"].as_f64().unwrap())
    );
    assert!((sum("share") - 1.0).abs() < 1e-6);
}

#[test]
fn files_that_cannot_be_written_and_those_that_are_there() {
    let folder = Folder::new();
    let run = |option: &str, path: &str| {
        let case = mnist();
        let mut command = command();
        command
            .arg("run")
            .arg(&case.model)
            .arg("--input")
            .arg(&case.inputs)
            .arg(option)
            .arg(folder.path(path));
        finish(&mut command)
    };
    let (profile, output) = (run("--profile", "none/trace.json"), run("--output", "none/out.npz"));
    assert_eq!(profile.code, output.code);
    profile.expect(1).says(&["cannot write ", "none/trace.json"]);
    folder.write("trace.json", "before");
    run("--profile", "trace.json").expect(0);
    Trace::read(&fs::read(folder.path("trace.json")).unwrap()).check();
    let left: Vec<_> =
        fs::read_dir(folder.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["trace.json"], "nothing else is left");
}

/// The first of three nodes runs; the second has an index out of range.
#[test]
fn a_failure_leaves_the_timeline_of_what_was_done() {
    let folder = Folder::new();
    let model = folder.write(
        "take.devbay",
        "devbay-program 1\n\nprogram \"p\"(%x: f32[2,3], %i: i64[1]) {\n  %a: f32[2,3] = Neg@13(%x) as \"before\"\n  \
         %b = Gather@13(%a, %i) as \"take\"\n  %y = Neg@13(%b) as \"after\"\n  return %y\n}\n",
    );
    let inputs = folder.path("in.npz");
    let (x, i) = (Tensor::from_elements(&[2, 3], &[0f32; 6]), Tensor::from_elements(&[1], &[100i64]));
    arrays::write_npz(&inputs, &[("x", &x.unwrap()), ("i", &i.unwrap())]).unwrap();
    let fail = |name: &str, streams: &str, path: &str| {
        let mut command = command();
        command.arg(name).arg(&model).arg("--input").arg(&inputs).args([
            "--json",
            "--plugin-option",
            streams,
        ]);
        finish(command.arg("--profile").arg(folder.path(path))).expect(5)
    };
    for (name, streams) in [
        ("run", "cpu.streams=inline"),
        ("run", "cpu.streams=async"),
        ("bench", "cpu.streams=inline"),
        ("bench", "cpu.streams=async"),
    ] {
        let at = format!("{name}, {streams}");
        let finished = fail(name, streams, "trace.json");
        assert!(finished.out.is_empty(), "{at}: {}", finished.out);
        let (said, error) = finished.err.trim_end().rsplit_once('\n').expect("two lines");
        assert!(said.contains("timeline until the failure written to "), "{at}: {said}");
        let json: serde_json::Value = serde_json::from_str(error).expect("an error in JSON");
        let message = json["error"]["message"].as_str().unwrap_or_default();
        assert!(json["error"]["kind"] == "invalid-input" && message.contains("100"), "{at}: {error}");
        let path = folder.path("trace.json");
        let trace = Trace::read(&fs::read(&path).unwrap());
        trace.check();
        assert_eq!(trace.of_category("run").count(), 1, "{at}");
        let ran = trace.labels("kernel");
        assert!(ran.contains("before (Neg@13)") && !ran.contains("after (Neg@13)"), "{at}: {ran:?}");
        fs::remove_file(path).unwrap();
        // Both errors are printed, and the run's decides the code.
        let finished = fail(name, streams, "none/trace.json").says(&[
            "\"kind\":\"io\"",
            "cannot write ",
            "none/trace.json",
        ]);
        assert!(finished.err.trim_end().ends_with(error), "{at}: {}", finished.err);
    }
}

#[test]
fn a_page_of_its_own_has_runs_ops_and_a_timeline() {
    let folder = Folder::new();
    let (page, trace) = (folder.path("page.html"), folder.path("trace.json"));
    let mut command = command();
    command.arg("bench").arg(&mnist().model).args(["--runs", "6", "--warmup", "1", "--threads", "1"]);
    command.arg("--profile").arg(&page).arg("--profile").arg(&trace);
    let found = finish(&mut command).expect(0);
    found.prints(&["page.html: open it in a browser", "trace.json: open it at https://ui.perfetto.dev"]);
    Trace::read(&fs::read(&trace).unwrap()).check();
    let page = fs::read_to_string(page).unwrap();
    let (tags, text) = read_xml(&page).unwrap_or_else(|why| panic!("{why} in:\n{page}"));
    // The first run, one to warm up, and six.
    let words =
        ["Profile of ", "mnist_cnn/model.onnx", "8 runs", "median ", "Time by op", "FusedConv", "UTC"];
    for word in words.iter().chain(&["Timeline of the run of median duration", "thread main"]) {
        assert!(text.contains(word), "expected `{word}` in:\n{text}");
    }
    assert_eq!(tags.iter().filter(|tag| *tag == "svg").count(), 2, "a histogram and a timeline");
    let outside = ["src=", "href=", "url(", "@import", "http://", "https://"];
    let own = page.replace("http://www.w3.org/1999/xhtml", "").replace("http://www.w3.org/2000/svg", "");
    assert!(!tags.contains(&"script".to_owned()) && !outside.iter().any(|word| own.contains(word)), "{page}");
    // Kernels of the run are in it, by name.
    let labels = planned_labels();
    assert!(
        !labels.is_empty() && labels.iter().all(|label| text.contains(label.as_str())),
        "{labels:?}\n{text}"
    );
}

#[test]
fn a_page_of_names_and_of_many_runs_stays_readable() {
    let folder = Folder::new();
    let text = "devbay-program 1\n\nprogram \"p\"(%x: f32[4]) {\n  %y: f32[4] = Sin@22(%x) as \"<script>&'\\\"\"\n  return %y\n}\n";
    let model = folder.write("<b>.txt", text);
    let page = folder.path("page.html");
    let mut command = command();
    command.arg("bench").arg(&model).args(["--runs", "3000", "--profile"]).arg(&page);
    finish(&mut command).expect(0);
    let page = fs::read_to_string(page).unwrap();
    let (tags, text) = read_xml(&page).unwrap_or_else(|why| panic!("{why} in:\n{page}"));
    assert!(text.contains("<script>&'\"") && !tags.contains(&"script".to_owned()), "{text}");
    assert!(page.len() < 100_000, "{} bytes for one run of many", page.len());
}

#[test]
fn outputs_that_cannot_be_written_leave_the_timeline() {
    let (folder, case) = (Folder::new(), mnist());
    let mut command = command();
    command.arg("run").arg(&case.model).arg("--input").arg(&case.inputs);
    command.arg("--output").arg(folder.path("none/out.npz")).arg("--profile").arg(folder.path("trace.json"));
    finish(&mut command).expect(1).says(&["cannot write ", "none/out.npz", "timeline until the failure"]);
    let trace = Trace::read(&fs::read(folder.path("trace.json")).unwrap());
    trace.check();
    assert_eq!(trace.of_category("kernel").count(), planned_labels().len());
}

#[test]
fn a_bench_counts_its_runs() {
    let folder = Folder::new();
    let path = folder.path("trace.json");
    let mut command = command();
    command.arg("bench").arg(&mnist().model).args(["--runs", "3", "--warmup", "1", "--json", "--profile"]);
    let json = finish(command.arg(&path)).expect(0).json();
    assert_eq!(json["profile"]["runs"], 5, "the first, one to warm up, and three");
    let trace = Trace::read(&fs::read(&path).unwrap());
    trace.check();
    let runs: BTreeSet<u64> = trace.of_category("kernel").map(|kernel| kernel.run).collect();
    assert_eq!(runs, (1..=5).collect());
}

/// Returns the inputs of [`STAGES`].
fn stages_inputs() -> [(&'static str, Tensor); 3] {
    let x: Vec<f32> = (0..64 * 64).map(|i| i as f32 / 1000.0).collect();
    [
        ("x", Tensor::from_elements(&[64, 64], &x).unwrap()),
        ("n", Tensor::from_elements(&[], &[3i64]).unwrap()),
        ("sure", Tensor::from_bytes(devbay_host::internals::core::tensor::BOOL, &[], &[1]).unwrap()),
    ]
}

#[test]
fn tasks_control_flow_and_nodes_that_are_planned_late() {
    let model = Model::from_program(text::parse(STAGES).unwrap());
    let inputs = stages_inputs();
    let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, tensor)| (*name, tensor)).collect();
    let plain = runtime(1, "inline", None);
    let expected = Session::new(&model, &plain.devices()[0]).unwrap().run(&given).unwrap();
    for threads in [1, 2, 3] {
        let recorder = Recorder::default();
        let runtime = runtime(threads, "inline", Some(&recorder));
        let plans = traced(&recorder, Policy::Each);
        let session = Session::with_options(&model, &runtime.devices()[0], plans).unwrap();
        for _ in 0..3 {
            let found = session.run(&given).unwrap();
            assert!(found.iter().zip(&expected).all(|(a, b)| a.bytes() == b.bytes()), "{threads} threads");
        }
        let (trace, summary) = taken(&recorder);
        trace.check();
        assert_eq!(trace.labels("control"), BTreeSet::from(["either (If@25)", "repeated (Loop@25)"]));
        let times = |label: &str| trace.slices.iter().filter(|slice| slice.name == label).count();
        for (label, n) in
            [("left (Abs@13)", 3), ("again (Add@14)", 9), ("where (NonZero@13)", 3), ("twice (Add@14)", 3)]
        {
            assert_eq!(times(label), n, "{label}");
        }
        let data = trace.data();
        for edge in [
            ("left (Abs@13)", "more left (Neg@13)"),
            ("more right (Sqrt@13)", "both (Add@14)"),
            ("both (Add@14)", "repeated (Loop@25)"),
            ("again (Add@14)", "and again (Neg@13)"),
        ] {
            assert!(data.contains(&edge), "{edge:?} is not in {data:?}");
        }
        let tasks = |run: u64| trace.of_category("task").filter(move |task| task.run == run).count();
        // Each launch of the first section, then those of its own.
        assert!((1..=3).all(|run| tasks(run) == 8), "{:?}", [tasks(1), tasks(2), tasks(3)]);
        let neg = summary.ops.iter().find(|op| op.op == "Neg").unwrap();
        assert_eq!((summary.n_runs, neg.n_nodes, neg.n_launches), (3, 2, 12));
        assert!(summary.busy_ns == summary.kernel_ns, "threads run one kernel at a time: {summary:?}");
        assert!(summary.busy_ns <= summary.available_ns && summary.n_places <= threads, "{summary:?}");
        assert!(summary.ops.iter().all(|op| op.op != "Loop" && op.op != "If"), "control flow is no kernel");
    }
}

/// Returns sixteen parallel products, and their sum.
fn branches() -> String {
    let ty = "f32[200,200]";
    let mut source = format!("devbay-program 1\n\nprogram \"branches\"(%x: {ty}) {{\n");
    for i in 0..16 {
        source += &format!("%a{i}: {ty} = MatMul@13(%x, %x) as \"product {i}\"\n");
    }
    source += &format!("%s1: {ty} = Add@14(%a0, %a1) as \"sum 1\"\n");
    for i in 2..16 {
        source += &format!("%s{i}: {ty} = Add@14(%s{}, %a{i}) as \"sum {i}\"\n", i - 1);
    }
    source + "return %s15\n}\n"
}

#[test]
fn a_worker_has_a_track_of_tasks() {
    let model = Model::from_program(text::parse(&branches()).unwrap());
    let x = Tensor::from_elements(&[200, 200], &vec![0.01f32; 40_000]).unwrap();
    let recorder = Recorder::default();
    let runtime = runtime(2, "inline", None);
    let mut plans = traced(&recorder, Policy::Auto);
    // The products are equal nodes.
    plans.passes = Switches::without(["common-subexpressions", "fuse-elementwise"]).unwrap();
    let session = Session::with_options(&model, &runtime.devices()[0], plans).unwrap();
    // On a busy machine the worker may be too late for some runs, but not for all.
    for _ in 0..100 {
        session.run(&[("x", &x)]).unwrap();
        let (trace, summary) = taken(&recorder);
        trace.check();
        assert_eq!((trace.of_category("kernel").count(), summary.n_runs), (31, 1));
        assert_eq!(trace.data().len(), 30, "each sum reads two");
        let on = |slice: &&Slice| trace.threads[&slice.place] == "devbay-1";
        if trace.of_category("task").any(|task| on(&task)) {
            assert!(trace.of_category("run").any(|run| on(&run)));
            assert_eq!(summary.n_places, 2);
            return;
        }
    }
    panic!("no task ran on the worker");
}

#[test]
fn several_runs_at_once_are_told_apart() {
    let case = mnist();
    let (model, inputs) = (Model::load(&case.model).unwrap(), arrays::read_npz(&case.inputs).unwrap());
    let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    for (threads, streams) in [(3, "inline"), (2, "async")] {
        let recorder = Recorder::default();
        let runtime = runtime(threads, streams, Some(&recorder));
        let plans = traced(&recorder, Policy::Each);
        let session = Session::with_options(&model, &runtime.devices()[0], plans).unwrap();
        let start = || session.run_async(&given, &RunOptions::default()).unwrap();
        let runs: Vec<Run> = (0..20).map(|_| start()).collect();
        assert!(runs.iter().all(|run| run.wait().is_ok()));
        let (trace, summary) = taken(&recorder);
        trace.check();
        let mut launches: BTreeMap<u64, usize> = BTreeMap::new();
        trace.of_category("kernel").for_each(|kernel| *launches.entry(kernel.run).or_default() += 1);
        let n = planned_labels().len();
        assert_eq!(launches, (1..=20).map(|run| (run, n)).collect(), "{streams}");
        assert_eq!((summary.n_runs, summary.n_unmarked), (20, 0));
    }
}

#[test]
fn runs_into_memory_and_bound_ones_are_recorded() {
    // Up to the node that is planned late.
    let (beginning, _) = STAGES.split_once("  %where").unwrap();
    let model = Model::from_program(text::parse(&format!("{beginning}  return %f\n}}\n")).unwrap());
    let inputs = stages_inputs();
    let recorder = Recorder::default();
    let runtime = runtime(2, "inline", None);
    let plans = traced(&recorder, Policy::One);
    let session = Session::with_options(&model, &runtime.devices()[0], plans).unwrap();
    let views: Vec<InputView<'_>> = inputs.iter().map(|(_, tensor)| InputView::of(tensor)).collect();
    let mut memory = [vec![0u8; 64 * 64 * 4]];
    let mut outputs: Vec<&mut [u8]> = memory.iter_mut().map(Vec::as_mut_slice).collect();
    session.run_into(&views, &mut outputs, &RunOptions::default()).unwrap();
    let mut bound = session.bind(&views, &mut outputs).unwrap().expect("one section");
    (0..2).for_each(|_| bound.run(None).unwrap());
    let (trace, summary) = taken(&recorder);
    trace.check();
    assert_eq!((summary.n_runs, trace.of_category("run").count()), (3, 3));
}

#[test]
fn a_device_that_marks_nothing_is_said_to() {
    let case = mnist();
    let (model, inputs) = (Model::load(&case.model).unwrap(), arrays::read_npz(&case.inputs).unwrap());
    let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let recorder = Recorder::default();
    // The plugin's marks are dropped.
    let runtime = runtime(1, "async", None);
    let plans = traced(&recorder, Policy::Auto);
    let session = Session::with_options(&model, &runtime.devices()[0], plans).unwrap();
    session.run(&given).unwrap();
    let (trace, summary) = taken(&recorder);
    trace.check();
    assert_eq!((summary.n_unmarked, summary.kernel_ns), (planned_labels().len(), 0));
    assert_eq!(trace.of_category("kernel").count(), 0);
}

#[test]
fn what_is_lost_is_counted() {
    let case = mnist();
    let (model, inputs) = (Model::load(&case.model).unwrap(), arrays::read_npz(&case.inputs).unwrap());
    let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let recorder = Recorder::new(3);
    let runtime = runtime(1, "inline", None);
    let plans = traced(&recorder, Policy::Auto);
    let session = Session::with_options(&model, &runtime.devices()[0], plans).unwrap();
    session.run(&given).unwrap();
    let (trace, summary) = taken(&recorder);
    // All launches and the run itself, minus the three that fit.
    assert_eq!((trace.lost, summary.n_dropped), (planned_labels().len() as u64 - 2, trace.lost));
    assert_eq!(trace.of_category("kernel").count(), 3);
    let (trace, _) = taken(&recorder);
    assert_eq!((trace.lost, trace.slices.len()), (0, 0), "nothing is given twice");
}

/// An untraced plan calls the kernels' own functions, with only their own references.
#[test]
fn without_a_recorder_nothing_is_in_the_way() {
    let case = mnist();
    let model = Model::load(&case.model).unwrap();
    let inputs = arrays::read_npz(&case.inputs).unwrap();
    let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let runtime = runtime(1, "inline", None);
    let recorder = Recorder::default();
    let plans = traced(&recorder, Policy::Auto);
    let traced =
        Session::with_options(&model, &runtime.devices()[0], plans).unwrap().plan_for(&given).unwrap();
    let plain = Session::new(&model, &runtime.devices()[0]).unwrap().plan_for(&given).unwrap();
    let [traced, plain]: [&Section; 2] =
        [&traced.single().unwrap().section, &plain.single().unwrap().section];
    assert_eq!(traced.steps.len(), plain.steps.len());
    let functions =
        |section: &Section| section.steps.iter().map(|step| step.launch as usize).collect::<BTreeSet<_>>();
    let [wrapped, own] = [functions(traced), functions(plain)];
    assert!(wrapped.len() == 1 && own.len() > 1 && wrapped.is_disjoint(&own), "{wrapped:?} {own:?}");
    assert_eq!(traced.refs.len(), plain.refs.len() + plain.steps.len(), "a reference more for each step");
    assert!(plain.context_refs.is_empty());
    assert!(!plain.is_traced() && traced.is_traced());
}
