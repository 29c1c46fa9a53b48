//! Plans for users: as text, as JSON and as drawings; and the rates behind their estimates.

use crate::support::onnx::{self, Graph};
use crate::support::{Folder, command, finish};
use devbay_host::internals::core::passes::Switches;
use devbay_host::internals::core::plan::cost::Rates;
use devbay_host::internals::core::program::text;
use devbay_host::{Model, PlanOptions, Runtime, Session};
use std::fs;
use std::path::{Path, PathBuf};

/// Two branches that are worth a task each, followed by each kind of stage.
const STAGES: &str = r#"devbay-program 1

program "stages"(%x: f32[64,64], %n: i64[], %sure: bool[]) {
  %a: f32[64,64] = Abs@13(%x) as "left"
  %b: f32[64,64] = Neg@13(%a) as "more\nleft"
  %c: f32[64,64] = Exp@13(%x) as "right"
  %d: f32[64,64] = Sqrt@13(%c) as "more right"
  %e: f32[64,64] = Add@14(%b, %d) as "both"
  %f: f32[64,64] = Loop@25(%n, _, %e) as "repeated" body(%i: i64[], %go: bool[], %s: f32[64,64]) {
    %t: f32[64,64] = Add@14(%s, %x)
    return %go, %t
  }
  %where: i64[2,?] = NonZero@13(%f) as "where"
  %either: i64[2,?] = If@25(%sure) as "either" then_branch() {
    %twice: i64[2,?] = Add@14(%where, %where)
    return %twice
  } else_branch() {
    %less: i64[2,?] = Neg@13(%where)
    return %less
  }
  return %f, %either
}
"#;

fn plan_text(rates: Rates, n_threads: usize) -> String {
    let runtime = Runtime::builder().threads(n_threads).link(devbay_plugin_cpu::PLUGIN).build();
    let model = Model::from_program(text::parse(STAGES).unwrap());
    let options = PlanOptions {
        rates: Some(rates),
        passes: Switches::without(["fuse-elementwise"]).unwrap(),
        ..PlanOptions::default()
    };
    let session = Session::with_options(&model, &runtime.unwrap().devices()[0], options).unwrap();
    let types: Vec<_> = session.inputs().iter().map(|port| port.ty.clone().unwrap()).collect();
    let shapes: Vec<_> = types.iter().map(|ty| ty.known_shape().unwrap()).collect();
    let types: Vec<_> = types.iter().zip(&shapes).map(|(ty, shape)| (ty.dtype, &shape[..])).collect();
    let plan = session.plan_for_types(&types).unwrap();
    session.plan_report(&plan).to_string()
}

#[test]
fn the_text_of_a_plan() {
    let rates = Rates {
        flops_per_ns: 8.0,
        bytes_per_ns: 4.0,
        launch_ns: 5.0,
        hand_over_ns: 100.0,
        ..Rates::default()
    };
    insta::assert_snapshot!("divided", plan_text(rates, 2));
    insta::assert_snapshot!("cheap", plan_text(Rates { hand_over_ns: 50_000.0, ..rates }, 2));
    insta::assert_snapshot!("one_thread", plan_text(rates, 1));
}

fn mnist() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/mnist_cnn/model.onnx")
}

#[test]
fn the_plan_of_a_trained_model() {
    let found = finish(command().arg("inspect").arg(mnist()).args(["--plan", "--threads", "2"])).expect(0);
    let found =
        found.prints(&["on cpu:0, 2 threads", "defaults, not measured", "one task: ", "task 0: ", "100.0 %"]);
    assert_eq!(found.err, "");
    let json = finish(command().arg("inspect").arg(mnist()).args(["--plan", "--json", "--threads", "1"]))
        .expect(0)
        .json();
    let section = &json["stages"][0];
    assert_eq!((&section["kind"], &section["one_task"]["kind"]), (&"section".into(), &"one-thread".into()));
    assert_eq!((&json["threads"], &json["rates"]["from"]), (&1.into(), &"default".into()));
    let tasks = section["tasks"].as_array().unwrap();
    let steps: Vec<_> = tasks.iter().flat_map(|task| task["steps"].as_array().unwrap()).collect();
    assert_eq!(json["launches"].as_u64(), Some(steps.len() as u64));
    assert!(found.out.contains(steps[0]["node"].as_str().unwrap()), "{}", found.out);
    let sum: f64 = steps.iter().map(|step| step["cost_ns"].as_f64().unwrap()).sum();
    assert!((sum - section["work_ns"].as_f64().unwrap()).abs() < 1.0);
    assert_eq!(section["work_ns"], section["path_ns"]);
}

#[test]
fn on_an_asynchronous_device_all_is_one_task() {
    let mut command = command();
    command.arg("inspect").arg(mnist()).args(["--plan", "--plugin-option", "cpu.streams=async"]);
    finish(&mut command).expect(0).prints(&["one task: the device works asynchronously"]);
}

#[test]
fn constants_are_counted_by_how_they_lie() {
    let places = |streams: &str| {
        let option = format!("cpu.streams={streams}");
        let mut command = command();
        command.arg("inspect").arg(mnist()).args(["--plan", "--json", "--plugin-option", &option]);
        let json = finish(&mut command).expect(0).json();
        let memory = &json["stages"][0]["memory"];
        let of = |place: &str| memory["constant_bytes_by_place"][place].as_u64().expect("a number");
        let found = ["in_file", "made", "packed", "uploaded"].map(of);
        assert_eq!(memory["constant_bytes"].as_u64(), Some(found.iter().sum()), "{memory}");
        found
    };
    let [in_file, made, packed, uploaded] = places("inline");
    assert!(in_file + made > 0 && packed > 0 && uploaded == 0, "{:?}", [in_file, made, packed, uploaded]);
    // All of that, if the host cannot access the device's memory.
    let [in_file, made, packed, uploaded] = places("async");
    assert!(in_file + made + packed == 0 && uploaded > 0, "{:?}", [in_file, made, packed, uploaded]);
}

#[test]
fn a_memory_budget_has_units() {
    let run = |budget: &str| {
        let mut command = command();
        command.arg("run").arg(mnist()).args([
            "--random",
            "1",
            "--plugin-option",
            "cpu.streams=inline,async",
        ]);
        finish(command.args(["--device", "cpu:1", "--memory-budget", budget]))
    };
    run("1G").expect(0);
    run("1K").expect(7).says(&["the budget is 1024", "of constants that stay", "of the arena"]);
    for budget in ["1X", "1.5G", "many", "99999999999T"] {
        run(budget).expect(2).says(&["--memory-budget", "512M or 2G"]);
    }
}

#[test]
fn open_extents_are_one_unless_given() {
    let folder = Folder::new();
    let model = folder.write(
        "open.devbay",
        "devbay-program 1\n\nprogram \"open\"(%x: f32[batch,3]) {\n  %y: f32[batch,3] = Abs@13(%x)\n  return %y\n}\n",
    );
    let inspect = |more: &[&str]| finish(command().arg("inspect").arg(&model).args(more));
    inspect(&["--plan"])
        .expect(0)
        .prints(&["input   x f32[1,3]"])
        .says(&["input `x` f32[batch,3] has the shape [1, 3]; --shape batch=N changes it"]);
    inspect(&["--plan", "--shape", "batch=7"]).expect(0).prints(&["input   x f32[7,3]"]);
    inspect(&["--plan", "--shape", "batch=7,3"]).expect(2).says(&["`batch` is one extent"]);
    inspect(&["--plan", "--shape", "x=5,3"])
        .expect(0)
        .prints(&["input   x f32[5,3]", "one task: there is one launch"]);
    inspect(&["--plan", "--shape", "x=5,4"]).expect(5).says(&["input `x` f32[batch,3] is given as f32[5,4]"]);
    inspect(&["--plan", "--shape", "x=five"]).expect(2).says(&["five is no extent"]);
    inspect(&["--plan", "--shape", "y=5,3"])
        .expect(5)
        .says(&["--shape y=5,3: the model has no input or named extent `y`"]);
    inspect(&["--plan", "--shape", "x"]).expect(2).says(&["--shape is NAME=DIMS, found x"]);
    let input = folder.path("x.npy");
    let tensor = devbay_host::Tensor::from_elements(&[2, 3], &[0f32; 6]).unwrap();
    devbay_host::arrays::write_npy(&input, &tensor).unwrap();
    inspect(&["--plan", "--input", &format!("x={}", input.display())])
        .expect(0)
        .prints(&["input   x f32[2,3]"]);
    inspect(&["--plan", "--input", &format!("z={}", input.display())]).expect(5).says(&["no input `z`"]);
}

#[test]
fn options_of_plans_want_a_plan() {
    let folder = Folder::new();
    let inspect = |file: &Path, more: &[&str]| finish(command().arg("inspect").arg(file).args(more));
    inspect(&mnist(), &["--shape", "x=1"]).expect(5).says(&["no input or named extent `x`"]);
    inspect(&mnist(), &["--shape", "input=1,1,28,28", "--text"]).expect(2).says(&["do not change the text"]);
    inspect(&mnist(), &["--dot", "plan.dot"]).expect(2).says(&["--plan"]);
    inspect(&mnist(), &["--plan", "--text"]).expect(2);
    let library = folder.write("libx.so", b"\x7fELF");
    inspect(&library, &["--plan"])
        .expect(2)
        .says(&["--plan, --passes, --nodes, --input and --shape are for models"]);
    inspect(&library, &["--nodes"]).expect(2).says(&["are for models"]);
    let nowhere = folder.path("missing/plan.dot");
    inspect(&mnist(), &["--plan", "--dot", nowhere.to_str().unwrap()])
        .expect(1)
        .says(&["cannot write", "plan.dot"]);
}

/// Names with markup and other special characters.
const HOSTILE: [&str; 5] = [
    "</title><script>alert(1)</script>",
    "\"quotes\" 'and' &amp; \\N back\\slashes\\",
    "lines\r\nand\ttabs\u{0}\u{1b}[31mred",
    "]; } digraph {",
    "<!-- ]]> ünïcödé 图",
];

#[test]
fn hostile_names_are_drawn_as_names() {
    let folder = Folder::new();
    let names: Vec<String> = (0..=HOSTILE.len()).map(|i| format!("v{i}")).collect();
    let nodes: Vec<_> = HOSTILE
        .iter()
        .enumerate()
        .map(|(i, name)| onnx::node(name, ["Abs", "Sin"][i % 2], &[&names[i]], &[&names[i + 1]]))
        .collect();
    let graph = Graph {
        nodes: &nodes,
        inputs: &[onnx::value(&names[0], onnx::FLOAT, &[3])],
        outputs: &[onnx::value(&names[HOSTILE.len()], onnx::FLOAT, &[3])],
        ..Graph::default()
    };
    let model = folder.write("<script>.onnx", onnx::model(14, &graph));
    let (dot, html) = (folder.path("plan.dot"), folder.path("plan.html"));
    let mut command = command();
    command.arg("inspect").arg(model).args(["--plan", "--dot"]).arg(&dot).arg("--html").arg(&html);
    let found = finish(&mut command).expect(0);
    assert!(!found.out.contains('\u{1b}') && !found.out.contains('\u{0}'), "{:?}", found.out);
    assert!(found.out.contains("lines\\r\\nand\\ttabs"), "{}", found.out);

    let page = fs::read_to_string(html).unwrap();
    let (tags, text) = read_xml(&page).unwrap_or_else(|why| panic!("{why} in:\n{page}"));
    assert!(tags.iter().any(|tag| tag == "svg") && !tags.iter().any(|tag| tag == "script"), "{tags:?}");
    assert!(!page.contains("http-equiv") && !page.contains("src=") && !page.contains("href="), "{page}");
    for name in [HOSTILE[0], HOSTILE[1], HOSTILE[3], HOSTILE[4]] {
        assert!(text.contains(name), "expected `{name}` as text in:\n{page}");
    }

    let dot = fs::read_to_string(dot).unwrap();
    assert_eq!(depth_outside_quotes(&dot), Ok(()), "{dot}");
    assert!(dot.contains("\\\\N back\\\\slashes"), "{dot}");
}

#[test]
fn drawings_of_a_trained_model_are_well_formed() {
    let folder = Folder::new();
    let (dot, html) = (folder.path("plan.dot"), folder.path("plan.html"));
    let mut command = command();
    command
        .arg("inspect")
        .arg(mnist())
        .args(["--plan", "--json", "--dot"])
        .arg(&dot)
        .arg("--html")
        .arg(&html);
    finish(&mut command).expect(0).json();
    let page = fs::read_to_string(html).unwrap();
    let (tags, text) = read_xml(&page).unwrap_or_else(|why| panic!("{why} in:\n{page}"));
    assert!(tags.iter().filter(|tag| *tag == "rect").count() >= 1 && text.contains("task 0"), "{page}");
    assert!(text.contains(&format!("Plan of {}", mnist().display())), "{text}");
    assert_eq!(depth_outside_quotes(&fs::read_to_string(dot).unwrap()), Ok(()));
}

/// Parses well-formed XML into its tags in order and all text; otherwise returns the fault.
pub fn read_xml(source: &str) -> Result<(Vec<String>, String), String> {
    let mut rest = source.strip_prefix("<!DOCTYPE html>").ok_or("no doctype")?;
    let (mut open, mut tags, mut text) = (Vec::new(), Vec::new(), String::new());
    while let Some(at) = rest.find('<') {
        text.push_str(&unescape(&rest[..at])?);
        let end = rest[at..].find('>').ok_or("a tag without an end")? + at;
        let tag = &rest[at + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            let last: Option<String> = open.pop();
            if last.as_deref() != Some(name) {
                return Err(format!("</{name}> closes {last:?}"));
            }
            continue;
        }
        let body = tag.strip_suffix('/').unwrap_or(tag);
        let name = body.split_whitespace().next().ok_or("a tag without a name")?;
        if !name.bytes().all(|b| b.is_ascii_alphanumeric()) {
            return Err(format!("the tag <{tag}>"));
        }
        // Attributes: `name="value"`, where quotes separate outside from inside.
        let parts: Vec<&str> = body[name.len()..].split('"').collect();
        if parts.len().is_multiple_of(2) || parts.iter().step_by(2).any(|part| part.contains(['&', '\''])) {
            return Err(format!("the attributes of <{tag}>"));
        }
        parts.iter().skip(1).step_by(2).try_for_each(|value| unescape(value).map(|_| ()))?;
        tags.push(name.to_owned());
        if !tag.ends_with('/') {
            open.push(name.to_owned());
        }
    }
    let is_end = rest.trim().is_empty() && open.is_empty();
    if is_end { Ok((tags, text)) } else { Err(format!("open at the end: {open:?} {rest}")) }
}

fn unescape(text: &str) -> Result<String, String> {
    let mut parts = text.split('&');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (entity, rest) = part.split_once(';').ok_or("an entity without an end")?;
        let entities = [("amp", '&'), ("lt", '<'), ("gt", '>'), ("quot", '"'), ("#39", '\'')];
        let known =
            entities.iter().find(|(name, _)| *name == entity).ok_or(format!("the entity {entity}"))?;
        out.push(known.1);
        out.push_str(rest);
    }
    match out.chars().find(|&c| c.is_control() && c != '\n') {
        Some(c) => Err(format!("the character {c:?}")),
        None => Ok(out),
    }
}

/// Checks that braces and brackets are balanced outside quoted text.
fn depth_outside_quotes(dot: &str) -> Result<(), String> {
    let (mut open, mut quoted, mut chars) = (Vec::new(), false, dot.chars());
    while let Some(c) = chars.next() {
        match c {
            '\\' if quoted => drop(chars.next()),
            '"' => quoted = !quoted,
            '{' | '[' if !quoted => open.push(c),
            '}' | ']' if !quoted => {
                let fits = matches!((open.pop(), c), (Some('{'), '}') | (Some('['), ']'));
                if !fits {
                    return Err(format!("{c} closes nothing"));
                }
            }
            _ => {}
        }
    }
    if open.is_empty() && !quoted { Ok(()) } else { Err(format!("open at the end: {open:?}")) }
}

#[test]
fn rates_are_measured_once_and_used() {
    let folder = Folder::new();
    let cache = folder.path("cache/devbay");
    let run = |arguments: &[&str]| finish(command().env("DEVBAY_CACHE_DIR", &cache).args(arguments));
    let mnist = mnist();
    let inspect = |threads| {
        run(&["inspect", mnist.to_str().unwrap(), "--plan", "--json", "--threads", threads]).expect(0).json()
    };
    assert_eq!(inspect("2")["rates"]["from"], "default");
    assert!(!cache.exists(), "nothing is measured unasked");

    let measured = run(&["devices", "--calibrate", "--json", "--threads", "2"]).expect(0).json();
    let figures = measured["devices"][0]["figures"].as_array().unwrap();
    let names: Vec<_> = figures.iter().map(|figure| figure["name"].as_str().unwrap()).collect();
    assert_eq!(
        names[..8],
        [
            "flops_per_ns",
            "bytes_per_ns",
            "launch_ns",
            "hand_over_ns",
            "to_device_ns",
            "to_device_bytes_per_ns",
            "from_device_ns",
            "from_device_bytes_per_ns"
        ]
    );
    for name in ["product_flops_per_ns", "pooling_launch_ns", "chain_flops_per_ns", "copying_bytes_per_ns"] {
        assert!(names.contains(&name), "expected {name} in {names:?}");
    }
    assert!(figures.iter().all(|figure| figure["value"].as_f64().unwrap() > 0.0), "{measured}");
    // On a shared machine, the figures for threads and clocks may be missing; the others are present.
    assert!(figures[..2].iter().all(|figure| figure["measured"] == true), "{measured}");
    let of_kinds = figures[8..].iter();
    assert!(of_kinds.clone().all(|figure| figure["measured"] == true), "{measured}");
    assert!(measured["file"].as_str().unwrap().ends_with("cache/devbay/rates.json"), "{measured}");

    let of_two = inspect("2");
    let rates = &of_two["rates"];
    assert_eq!((&rates["from"], &rates["flops_per_ns"]), (&"measured".into(), &figures[0]["value"]));
    // Rates are per thread, except the hand-over.
    let of_one = inspect("1");
    let alone = &of_one["rates"];
    assert_eq!((&alone["from"], &alone["flops_per_ns"]), (&"measured".into(), &figures[0]["value"]));
    assert_eq!(alone["hand_over_ns"].as_f64(), Some(1000.0));
    let pooling = figures.iter().find(|figure| figure["name"] == "pooling_flops_per_ns").unwrap();
    assert_eq!(rates["by_work"]["pooling"]["flops_per_ns"], pooling["value"]);
    let device = run(&["devices", "--json", "--threads", "2"]).expect(0).json()["devices"][0].clone();
    assert_eq!(device["rates"]["measured"], true);

    fs::write(cache.join("rates.json"), "{\"version\": 1, ").unwrap();
    let warned = run(&["inspect", mnist.to_str().unwrap(), "--plan", "--threads", "2"]);
    warned.expect(0).says(&["rates.json are not used", "--calibrate"]).prints(&["defaults, not measured"]);
}

#[test]
fn calibrating_says_what_was_not_measured() {
    let folder = Folder::new();
    let cache = folder.path("cache");
    let mut calibrate = command();
    calibrate.env("DEVBAY_CACHE_DIR", &cache).args(["devices", "--calibrate", "--threads", "1"]);
    finish(&mut calibrate).expect(0).prints(&[
        "arithmetic of one thread",
        "operations/ns",
        "measured",
        "the default: there is one thread",
        "kept in",
    ]);
    // Without a place to store them, the rates are still printed.
    let mut nowhere = command();
    nowhere.env_remove("HOME").env_remove("XDG_CACHE_HOME").args([
        "devices",
        "--calibrate",
        "--threads",
        "1",
    ]);
    finish(&mut nowhere).expect(1).says(&["DEVBAY_CACHE_DIR"]).prints(&["arithmetic of one thread"]);
}
