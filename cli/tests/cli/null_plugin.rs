//! The plugin that accepts everything and computes nothing (`plugins/null`): its list of ops is the catalogue's, it passes
//! the profile `base`, and models run on it.

use crate::support::{Folder, command, devbay, finish, library_of};
use devbay_host::internals::core::program::catalogue::{self, OpKind};
use serde_json::{Value, json};
use std::path::Path;

fn null() -> String {
    library_of("null").display().to_string()
}

#[test]
fn its_ops_are_those_of_the_catalogue() {
    let about = devbay(["inspect", &null(), "--json"]).expect(0).json();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let kernels = about["kernels"].as_array().unwrap();
    let listed: Vec<_> = kernels
        .iter()
        .map(|kernel| {
            (text(&kernel["domain"]), text(&kernel["op"]), kernel["since_version"].as_u64().unwrap())
        })
        .collect();
    let expected: Vec<_> = catalogue::all()
        .filter(|def| def.kind == OpKind::Kernel)
        .map(|def| (def.domain.to_owned(), def.name.to_owned(), u64::from(def.version)))
        .collect();
    assert_eq!(listed, expected, "plugins/null/src/ops.rs is not as core/src/program/catalogue.rs");
    // Every named dtype, for every operand.
    for kernel in kernels {
        for types in kernel["types"].as_array().unwrap() {
            assert_eq!(types.as_array().unwrap().len(), 23, "{kernel}");
        }
    }
}

#[test]
fn it_passes_base_and_claims_no_more() {
    for streams in ["streams=inline", "streams=async"] {
        let report =
            devbay(["conformance", &null(), "--profile", "base", "--plugin-option", streams, "--json"])
                .expect(0)
                .json();
        assert_eq!(report["plugin"]["profiles"], json!(["base"]), "{streams}");
        assert_eq!(report["summary"]["failed"], 0, "{}", report["tests"]);
        let points = report["tests"].as_array().unwrap().iter().find(|test| test["id"] == "stream.signal");
        let expected = if streams.ends_with("async") { "passed" } else { "not-claimed" };
        assert_eq!(points.unwrap()["outcome"], expected);
    }
    // Tests of numbers must fail.
    devbay(["conformance", &null(), "--only", "numerics.relu"]).expect(3);
    devbay(["devices", "--plugin", &null(), "--plugin-option", "null.streams=other"])
        .expect(0)
        .prints(&["option streams is inline or async, found other"]);
}

#[test]
fn models_are_measured_on_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for (model, launches) in [("mnist_cnn", 7), ("efficientnet_lite0", 52)] {
        for streams in ["null.streams=inline", "null.streams=async"] {
            let mut bench = command();
            bench.arg("bench").arg(root.join(format!("models/{model}/model.onnx")));
            bench.args(["--runs", "5", "--json", "--plugin", &null(), "--plugin-option", streams]);
            let json = finish(&mut bench).expect(0).json();
            assert_eq!((&json["device"], &json["launches"]), (&"null:0".into(), &launches.into()), "{json}");
        }
    }
}

#[test]
fn what_is_known_beforehand_is_computed_elsewhere() {
    let program = r#"devbay-program 1

program "p"(%x: f32[1,3]) {
  %a: i64[2] = const i64[2] [1, 2]
  %b: i64[2] = const i64[2] [1, 1]
  %shape: i64[2] = Add@14(%a, %b) as "sum"
  %y = Expand@13(%x, %shape) as "expand"
  %z = Relu@14(%y) as "relu"
  return %z
}
"#;
    let folder = Folder::new();
    let model = folder.write("p.devbay", program).display().to_string();
    let run = ["run", &model, "--random", "1", "--json", "--plugin", &null()].map(str::to_owned);
    let json = devbay(&run).expect(0).json();
    assert_eq!((&json["device"], &json["outputs"][0]["shape"]), (&"null:0".into(), &json!([2, 3])), "{json}");
    let refused = devbay(run.iter().map(String::as_str).chain(["--no-fallback"]));
    refused.expect(4).says(&["node sum (Add@14)", "all inputs are constants"]);
}
