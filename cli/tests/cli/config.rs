//! The configuration file: defaults that options and environment variables win over.

use crate::support::{Finished, Folder, command, defect, finish};
use std::path::{Path, PathBuf};

const RELU: &str = r#"devbay-program 1

program "p"(%x: f32[16]) {
  %y: f32[16] = Relu@14(%x) as "first"
  return %y
}
"#;

/// A folder of configuration with a plugin and a model beside it.
struct Configured {
    folder: Folder,
    model: PathBuf,
    library: PathBuf,
}

impl Configured {
    fn new(text: &str) -> Self {
        let folder = Folder::new();
        std::fs::create_dir(folder.path("devbay")).expect("a folder");
        folder.write("devbay/config.toml", text);
        let (model, library) =
            (folder.write("relu.txt", RELU), defect(&folder, "MINOR_MIN=DEVBAY_ABI_MINOR"));
        Self { folder, model, library }
    }

    #[track_caller]
    fn devbay(&self, arguments: &[&str], environment: &[(&str, &Path)]) -> Finished {
        let mut command = command();
        command.env("XDG_CONFIG_HOME", self.folder.path(""));
        finish(command.args(arguments).envs(environment.iter().copied()))
    }

    fn device(&self, more: &[&str], environment: &[(&str, &Path)]) -> String {
        let model = self.model.to_str().expect("a path");
        let arguments = [&["run", model, "--random", "--json"], more].concat();
        self.devbay(&arguments, environment).expect(0).json()["device"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }
}

#[test]
fn the_file_has_defaults_and_options_win() {
    let configured = Configured::new(
        "device = \"minimal:0\"\nthreads = 3\nplugins = [\"../libdevbay_plugin_minimal.so\"]\n",
    );
    assert_eq!(configured.device(&[], &[]), "minimal:0");
    assert_eq!(configured.device(&["--device", "cpu"], &[]), "cpu:0");
    let threads = |more: &[&str]| {
        let model = configured.model.to_str().expect("a path");
        let arguments = [&["bench", model, "--runs", "1", "--json"], more].concat();
        configured.devbay(&arguments, &[]).expect(0).json()["threads"].as_u64()
    };
    assert_eq!((threads(&[]), threads(&["--threads", "2"])), (Some(3), Some(2)));
    let path = configured.folder.path("devbay/config.toml").display().to_string();
    configured.devbay(&["doctor"], &[]).expect(0).prints(&[
        &path,
        "device minimal:0, 3 threads, 1 plugin",
        "named in the configuration file",
    ]);
}

#[test]
fn a_variable_names_another_file() {
    let configured = Configured::new("device = \"nowhere:0\"\n");
    let other = configured.folder.write("other.toml", "device = \"cpu\"\n");
    assert_eq!(configured.device(&[], &[("DEVBAY_CONFIG", &other)]), "cpu:0");
    // Its own file would fail.
    let model = configured.model.to_str().expect("a path");
    configured.devbay(&["run", model, "--random"], &[]).expect(6).says(&["nowhere"]);
    let missing = configured.folder.path("missing.toml");
    configured
        .devbay(&["run", model, "--random"], &[("DEVBAY_CONFIG", &missing)])
        .expect(1)
        .says(&["missing.toml: the configuration file, which DEVBAY_CONFIG names, cannot be read"]);
}

#[test]
fn plugins_come_from_a_folder_and_the_environment_wins() {
    let configured = Configured::new("plugins = [\"..\"]\n");
    let devices = configured.devbay(&["devices", "--json"], &[]).expect(0).json();
    assert!(
        devices["devices"].as_array().is_some_and(|list| list.iter().any(|d| d["device"] == "minimal:0"))
    );
    // The same plugin in a folder of the variable is the one that is loaded.
    let other = Folder::new();
    let preferred = other.path("libdevbay_plugin_minimal.so");
    std::fs::copy(&configured.library, &preferred).expect("a copy");
    let environment = [("DEVBAY_PLUGIN_PATH", preferred.parent().expect("a folder"))];
    let devices = configured.devbay(&["devices", "--json"], &environment).expect(0).json();
    let plugins = devices["plugins"].as_array().expect("a list").clone();
    let loaded: Vec<_> = plugins
        .iter()
        .filter(|plugin| plugin["name"] == "minimal" && plugin["outcome"] == "loaded")
        .map(|plugin| plugin["library"].clone())
        .collect();
    assert_eq!(loaded, [preferred.display().to_string()]);
}

#[test]
fn a_named_plugin_wins_over_the_device_of_the_file() {
    let configured = Configured::new("device = \"cpu\"\n");
    let library = configured.library.to_str().expect("a path").to_owned();
    assert_eq!(configured.device(&["--plugin", &library], &[]), "minimal:0");
}

#[test]
fn a_wrong_key_is_named_with_its_line_and_doctor_goes_on() {
    let configured = Configured::new("threads = 2\ndevices = \"cpu\"\n");
    let words =
        "config.toml: line 2: unknown field `devices`, expected one of `device`, `threads`, `plugins`";
    let model = configured.model.to_str().expect("a path");
    for arguments in [&["run", model, "--random"][..], &["devices"], &["ops"], &["inspect", model]] {
        configured.devbay(arguments, &[]).expect(2).says(&[words]);
    }
    configured.devbay(&["doctor"], &[]).expect(0).prints(&[
        "! config",
        words,
        "-> correct that line",
        "cpu:0",
    ]);
    configured.devbay(&["--version"], &[]).expect(0);
}
