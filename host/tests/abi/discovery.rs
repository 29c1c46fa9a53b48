//! Finding plugins (B25), loading them, and trying unknown ones in a child first (B27).

use crate::support::{Folder, Host, RELU, faulty, library_name, relu};
use devbay_host::internals::load::LibraryFile;
use devbay_host::internals::manifest::sha256_of;
use devbay_host::internals::probe::{MARK, ProbeResult, probe};
use devbay_host::{
    LoadReport, Outcome, ProbeOptions, Probing, PythonPackage, RefusalKind, Runtime, SearchPaths,
};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A manifest with these further fields.
fn manifest(name: &str, library: &str, more: &str) -> String {
    // Without it the library would be unknown, and be tried first (B27).
    let sha256 = match more.contains("sha256") {
        true => String::new(),
        false => format!(", \"sha256\": \"{}\"", sha256_of(&faulty()).unwrap()),
    };
    format!("{{\"devbay_manifest\": 1, \"name\": \"{name}\", \"library\": \"{library}\"{more}{sha256}}}")
}

/// A host that looks in folders of manifests and in folders of libraries.
fn host(manifests: &[&Folder], libraries: &[&Folder]) -> Host {
    let paths = |folders: &[&Folder]| folders.iter().map(|folder| folder.path().to_owned()).collect();
    Host::new(Runtime::builder().threads(1).search(SearchPaths {
        manifest_folders: paths(manifests),
        library_folders: paths(libraries),
        ..SearchPaths::none()
    }))
}

/// Returns the outcome of each candidate, in order: `loaded`, or the kind of the refusal.
fn outcomes(report: &LoadReport) -> Vec<String> {
    let outcome = |outcome: &Outcome| match outcome {
        Outcome::Loaded { .. } => "loaded".to_owned(),
        Outcome::NotAsked => "not asked".to_owned(),
        Outcome::Replaced => "replaced".to_owned(),
        Outcome::Refused(refusal) => refusal.kind.name().to_owned(),
    };
    report.plugins.iter().map(|plugin| outcome(&plugin.outcome)).collect()
}

/// A folder with the faulty plugin and a manifest for it.
fn described(more: &str) -> Folder {
    let folder = Folder::new();
    folder.faulty("faulty");
    folder.write("faulty.json", manifest("faulty", &library_name("faulty"), more));
    folder
}

#[test]
fn b25_a_manifest_finds_its_library() {
    let sha256 = sha256_of(&faulty()).unwrap();
    let arch = std::env::consts::ARCH;
    let folder = described(&format!(
        ", \"sha256\": \"{sha256}\", \"arch\": \"{arch}\", \"abi\": {{\"major\": 0, \"min\": 9, \"max\": 9}}, \
         \"of tomorrow\": [1]"
    ));
    let host = host(&[&folder], &[]);
    assert_eq!(outcomes(host.runtime.report()), ["loaded"]);
    assert_eq!(relu(&host.device()).unwrap(), RELU);
}

#[test]
fn b25_a_library_that_is_not_the_manifests_is_refused() {
    let wrong = "0".repeat(64);
    let cases = [
        (format!(", \"sha256\": \"{wrong}\""), "wrong-hash", wrong.as_str()),
        (", \"arch\": \"pdp11\"".to_owned(), "bad-manifest", "for arch pdp11"),
        (", \"os\": \"vms\"".to_owned(), "bad-manifest", "for os vms"),
        (
            ", \"abi\": {\"major\": 0, \"min\": 1, \"max\": 2}".to_owned(),
            "no-common-version",
            "the manifest says 0.1 to 0.2",
        ),
        (
            ", \"abi\": {\"major\": 1, \"min\": 1, \"max\": 2}".to_owned(),
            "no-common-version",
            "the manifest says 1.1 to 1.2",
        ),
    ];
    for (more, kind, words) in cases {
        let folder = described(&more);
        let host = host(&[&folder], &[]);
        assert_eq!(outcomes(host.runtime.report()), [kind], "{more}");
        assert!(host.refusal().reason.contains(words), "{}", host.refusal());
    }
    // The message has the file's hash too, so that the manifest can be mended.
    let folder = described(&format!(", \"sha256\": \"{wrong}\""));
    let found = sha256_of(&faulty()).unwrap();
    assert!(host(&[&folder], &[]).refusal().reason.contains(&found));
}

#[test]
fn b25_broken_manifests_are_refused() {
    let cases = [
        ("", "bad-manifest", "not a manifest"),
        ("{\"devbay_manifest\": 1, \"name\": \"x\"}", "bad-manifest", "missing field `library`"),
        ("[[[[[[", "bad-manifest", "not a manifest"),
        (
            "{\"devbay_manifest\": 2, \"name\": \"x\", \"library\": \"x.so\"}",
            "bad-manifest",
            "version 2, this host reads version 1",
        ),
        (
            "{\"devbay_manifest\": 1, \"name\": \"X Y\", \"library\": \"x.so\"}",
            "bad-manifest",
            "names its plugin `X Y`",
        ),
        ("{\"devbay_manifest\": 1, \"name\": \"x\", \"library\": \"x.so\"}", "unreadable", "cannot read"),
    ];
    for (text, kind, words) in cases {
        let folder = Folder::new();
        folder.write("x.json", text);
        let host = host(&[&folder], &[]);
        assert_eq!(outcomes(host.runtime.report()), [kind], "{text}");
        assert!(host.refusal().reason.contains(words), "{}", host.refusal());
    }
    let folder = Folder::new();
    folder.write("x.json", " ".repeat(2 << 20));
    assert!(host(&[&folder], &[]).refusal().reason.contains("2097152 bytes"));
    // A library that gives another name.
    let folder = Folder::new();
    folder.faulty("faulty");
    folder.write("other.json", manifest("other", &library_name("faulty"), ""));
    let host = host(&[&folder], &[]);
    assert!(host.refusal().reason.contains("names the plugin other, the library faulty"));
}

#[test]
fn b25_of_two_with_one_name_the_first_folder_wins() {
    let (first, second) = (described(""), described(""));
    let host = host(&[&first, &second], &[]);
    assert_eq!(outcomes(host.runtime.report()), ["loaded", "duplicate-name"]);
    let (_, refusal) = host.runtime.report().refused().next().unwrap();
    let winner = first.path().join("faulty.json");
    assert!(refusal.reason.contains(&winner.display().to_string()), "{refusal}");
    assert!(refusal.reason.contains("the first one wins"), "{refusal}");
    assert_eq!(relu(&host.device()).unwrap(), RELU);
}

/// The second of two whose names are known only when they are loaded.
#[test]
fn b25_two_libraries_with_one_name() {
    let folder = Folder::new();
    let plugins = vec![folder.faulty("one"), folder.faulty("two")];
    let host = Host::new(Runtime::builder().threads(1).plugins(plugins));
    assert_eq!(outcomes(host.runtime.report()), ["loaded", "duplicate-name"]);
    assert_eq!(host.log.messages(), ["created"], "an instance was made before the name was looked at");
}

#[test]
fn b25_a_plugin_that_is_named_replaces_others() {
    let found = described("");
    let host = Host::new(
        Runtime::builder()
            .threads(1)
            .plugin(faulty())
            .link(devbay_plugin_faulty::devbay_entry::PLUGIN)
            .search(SearchPaths { manifest_folders: vec![found.path().to_owned()], ..SearchPaths::none() }),
    );
    assert_eq!(outcomes(host.runtime.report()), ["loaded", "replaced", "replaced"]);
    let plugins = &host.runtime.report().plugins;
    assert_eq!(plugins[0].origin, "named explicitly");
    assert!(plugins[1].notes[0].contains("replaced by the plugin of this name"), "{:?}", plugins[1]);
}

/// A linked plugin comes through the same entry, and before what is found.
#[test]
fn b25_linked_plugins_come_before_found_ones() {
    let found = described("");
    let host = Host::new(
        Runtime::builder()
            .threads(1)
            .link(devbay_plugin_faulty::devbay_entry::PLUGIN)
            .search(SearchPaths { manifest_folders: vec![found.path().to_owned()], ..SearchPaths::none() }),
    );
    assert_eq!(outcomes(host.runtime.report()), ["loaded", "duplicate-name"]);
    assert_eq!(host.runtime.report().plugins[0].library, None);
    assert_eq!(relu(&host.device()).unwrap(), RELU);
}

/// A folder of Python packages: a plugin's, with its metadata.
fn with_package() -> Folder {
    let folder = Folder::new();
    let library = folder.faulty("faulty");
    let text = manifest("faulty", &library.display().to_string(), "");
    folder.write("npu_package/faulty.json", text);
    folder.write(
        "npu_package-1.2.dist-info/METADATA",
        "Metadata-Version: 2.4\nName: npu-package\nVersion: 1.2\n\nName: x\n",
    );
    let entry_points = "[devbay.plugins]\nfaulty = npu_package\nabsent = npu_package.sub\n";
    folder.write("npu_package-1.2.dist-info/entry_points.txt", entry_points);
    folder
}

#[test]
fn b25_a_package_offers_plugins_by_entry_points() {
    let (found, folder) = (described(""), with_package());
    let title = "npu-package 1.2".to_owned();
    let entry_points = "[devbay.plugins]\nfaulty = npu_package\nabsent = npu_package.sub\n".to_owned();
    let packages = vec![PythonPackage { title, entry_points, folders: vec![folder.path().to_owned()] }];
    let host = Host::new(Runtime::builder().threads(1).search(SearchPaths {
        manifest_folders: vec![found.path().to_owned()],
        packages,
        ..SearchPaths::none()
    }));
    // Files that were not found come first in a report, and a package before the user's folder.
    assert_eq!(outcomes(host.runtime.report()), ["unreadable", "loaded", "duplicate-name"]);
    let plugins = &host.runtime.report().plugins;
    assert_eq!(
        (plugins[0].name.as_deref(), &*plugins[0].origin),
        (Some("absent"), "package npu-package 1.2")
    );
    assert_eq!(plugins[1].origin, "package npu-package 1.2");
    assert_eq!(relu(&host.device()).unwrap(), RELU);
}

#[cfg(target_os = "linux")]
#[test]
fn b25_a_program_of_a_python_package_finds_the_packages_beside_it() {
    let prefix = Folder::new();
    let program = prefix.write("bin/devbay", "");
    let packages = prefix.path().join("lib/python3.99/site-packages");
    std::fs::create_dir_all(packages.parent().unwrap()).unwrap();
    std::fs::rename(with_package().path(), &packages).unwrap();
    // Packages of a Python that the program was not installed into are not its own.
    assert_eq!(PythonPackage::installed_with(&program), []);
    std::fs::create_dir(packages.join("devbay-0.1.0.dist-info")).unwrap();
    std::os::unix::fs::symlink("lib", prefix.path().join("lib64")).unwrap();
    let found = SearchPaths::none().with_packages_of(&program).packages;
    let titles: Vec<&str> = found.iter().map(|package| &*package.title).collect();
    assert_eq!(titles, ["npu-package 1.2"]);
    assert!(found[0].folders[0].ends_with("lib/python3.99/site-packages"), "{:?}", found[0]);
    // A program is followed to where it is.
    std::os::unix::fs::symlink(&program, prefix.path().join("devbay")).unwrap();
    assert_eq!(PythonPackage::installed_with(&prefix.path().join("devbay")), found);
}

#[test]
fn b25_folders_that_are_not_there_have_no_plugins() {
    let nowhere = Folder::new();
    let absent = nowhere.path().join("absent");
    let host = Host::new(Runtime::builder().threads(1).search(SearchPaths {
        manifest_folders: vec![absent.clone()],
        library_folders: vec![absent],
        ..SearchPaths::none()
    }));
    assert!(host.runtime.report().plugins.is_empty());
    // One that cannot be read is a line in the report.
    let file = nowhere.write("file", "");
    let search = SearchPaths { manifest_folders: vec![file], ..SearchPaths::none() };
    let host = Host::new(Runtime::builder().threads(1).search(search));
    assert_eq!(outcomes(host.runtime.report()), ["unreadable"]);
}

fn variables<'a>(pairs: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<OsString> + 'a {
    move |name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
}

#[test]
fn b25_the_environment_is_ignored_for_elevated_processes() {
    let environment =
        [("DEVBAY_PLUGIN_PATH", "/one::/two"), ("HOME", "/home/me"), ("XDG_CONFIG_HOME", "/config")];
    let paths = SearchPaths::from_variables(false, variables(&environment));
    assert_eq!(paths.library_folders, ["/one", "/two"].map(PathBuf::from));
    let users = Path::new("/config/devbay/plugins.d");
    let system = ["/etc", "/usr/local/share", "/usr/share"];
    let system = system.map(|root| Path::new(root).join("devbay/plugins.d"));
    assert_eq!(paths.manifest_folders[0], users);
    assert_eq!(paths.manifest_folders[1..], system);
    let without_config = SearchPaths::from_variables(false, variables(&environment[..2]));
    assert_eq!(without_config.manifest_folders[0], Path::new("/home/me/.config/devbay/plugins.d"));

    let elevated = SearchPaths::from_variables(true, variables(&environment));
    assert!(elevated.library_folders.is_empty());
    assert_eq!(elevated.manifest_folders, system);
}

#[test]
fn b25_a_projects_folder_is_looked_at_when_asked_for() {
    let paths = SearchPaths::from_variables(false, variables(&[("HOME", "/home/me")]));
    assert!(!paths.manifest_folders.iter().any(|folder| folder.ends_with(".devbay/plugins.d")));
    let project = Folder::new();
    project.faulty("faulty");
    let manifest = manifest("faulty", &format!("../../{}", library_name("faulty")), "");
    project.write(".devbay/plugins.d/faulty.json", manifest);
    let search = SearchPaths::none().with_project(project.path());
    let host = Host::new(Runtime::builder().threads(1).search(search));
    assert_eq!(outcomes(host.runtime.report()), ["loaded"]);
}

#[test]
fn b25_options_of_the_application_go_before_the_manifests() {
    let folder = described(", \"options\": {\"devices\": \"gpu,npu\", \"align\": \"128\"}");
    let options = |plugin_options: Vec<(String, String, String)>| {
        Runtime::builder()
            .threads(1)
            .options(plugin_options)
            .search(SearchPaths { manifest_folders: vec![folder.path().to_owned()], ..SearchPaths::none() })
    };
    let host = Host::new(options(vec![]));
    assert_eq!(host.runtime.devices().len(), 2);
    let host = Host::new(options(vec![("faulty".into(), "devices".into(), "cpu".into())]));
    assert_eq!(host.runtime.devices().len(), 1);
    assert_eq!(host.device().about().kind_name(), "cpu");
    assert_eq!(host.device().space().alloc_align, 128, "what the application does not say is the manifest's");
}

#[test]
fn plugins_that_were_not_asked_for_are_left_alone() {
    let folder = described("");
    let host = Host::new(
        Runtime::builder()
            .threads(1)
            .only(vec!["cpu".to_owned()])
            .search(SearchPaths { manifest_folders: vec![folder.path().to_owned()], ..SearchPaths::none() }),
    );
    assert_eq!(outcomes(host.runtime.report()), ["not asked"]);
    assert!(host.log.messages().is_empty());
}

fn prober(limit_ms: u64) -> ProbeOptions {
    let program = env!("CARGO_BIN_EXE_devbay-probe").into();
    ProbeOptions { program, limit: Duration::from_millis(limit_ms) }
}

/// A host that finds libraries without manifests, and tries them first.
fn probing(folder: &Folder, limit_ms: u64) -> Host {
    Host::new(
        Runtime::builder()
            .threads(1)
            .probe(Probing::Tried(prober(limit_ms)))
            .search(SearchPaths { library_folders: vec![folder.path().to_owned()], ..SearchPaths::none() }),
    )
}

/// Real libraries do these things where their hardware is missing; loaded here, they would end this test.
#[test]
fn b27_libraries_that_end_their_process_are_refused() {
    let cases: [(&[&str], &str); 6] = [
        (&["DEFECT_ABORT_AT_LOAD"], "no chips found, giving up"),
        (&["DEFECT_EXIT_AT_LOAD"], "exit status: 0"),
        (&["DEFECT_ANSWER_AT_LOAD"], "exit status: 0"),
        (&["DEFECT_CRASH_IN_CREATE"], "signal 11"),
        (&["DEFECT_ABORT_AT_LOAD", "NAME=\"other\""], "signal 6"),
        (&["DEFECT_UNDEFINED_SYMBOL"], "devbay_host_log"),
    ];
    for (definitions, words) in cases {
        let folder = Folder::new();
        folder.defect(definitions);
        let host = probing(&folder, 20_000);
        let refusal = host.refusal();
        assert!(refusal.reason.contains(words), "{definitions:?}: {refusal}");
        // A fault that the child could report is refused again here, with its own reason.
        let said = definitions[0] == "DEFECT_UNDEFINED_SYMBOL";
        let kind = if said { RefusalKind::NotALibrary } else { RefusalKind::FailedProbe };
        assert_eq!(refusal.kind, kind, "{definitions:?}: {refusal}");
    }
}

#[test]
fn b27_libraries_that_hang_are_refused_in_time() {
    let folder = Folder::new();
    folder.defect(&["DEFECT_HANG_IN_QUERY"]);
    let begin = Instant::now();
    let host = probing(&folder, 500);
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    assert_eq!(host.refusal().kind, RefusalKind::FailedProbe);
    assert!(host.refusal().reason.contains("did not answer within 500ms"), "{}", host.refusal());
}

#[test]
fn b27_good_libraries_pass_the_probe() {
    let folder = Folder::new();
    folder.c_plugin("minimal", "minimal.c", &[]);
    let host = probing(&folder, 20_000);
    assert_eq!(outcomes(host.runtime.report()), ["loaded"]);
    assert_eq!(relu(&host.device()).unwrap(), RELU);
}

/// Only a manifest with the library's SHA-256 vouches for it.
#[test]
fn b27_a_manifest_without_a_hash_does_not_skip_the_probe() {
    let folder = Folder::new();
    let library = folder.defect(&["DEFECT_CRASH_IN_CREATE"]);
    let library = library.file_name().unwrap().to_str().unwrap();
    let plain = format!("{{\"devbay_manifest\": 1, \"name\": \"minimal\", \"library\": \"{library}\"}}");
    folder.write("minimal.json", plain);
    let host = |probe: Probing| {
        let search = SearchPaths { manifest_folders: vec![folder.path().to_owned()], ..SearchPaths::none() };
        Host::new(Runtime::builder().threads(1).probe(probe).search(search))
    };
    let tried = host(Probing::Tried(prober(20_000)));
    assert_eq!(tried.refusal().kind, RefusalKind::FailedProbe, "{}", tried.refusal());
    let refused = host(Probing::Refused);
    assert_eq!(refused.refusal().kind, RefusalKind::NotProbed);
    assert!(refused.refusal().reason.contains("its manifest has no sha256"), "{}", refused.refusal());
}

/// Trusted libraries are loaded without a probe, even from a folder.
#[test]
fn b27_without_probing_libraries_of_folders_are_loaded() {
    let folder = Folder::new();
    folder.c_plugin("minimal", "minimal.c", &[]);
    let search = SearchPaths { library_folders: vec![folder.path().to_owned()], ..SearchPaths::none() };
    let probe = Probing::Trusted;
    let host = Host::new(Runtime::builder().threads(1).probe(probe).search(search));
    assert_eq!(outcomes(host.runtime.report()), ["loaded"]);
}

/// A file that is exchanged between its check and its load is found out.
#[cfg(target_os = "linux")]
#[test]
fn b27_what_was_hashed_is_what_is_loaded() {
    let folder = Folder::new();
    let library = folder.c_plugin("minimal", "minimal.c", &[]);
    let sha256 = sha256_of(&library).unwrap();
    let checked = || {
        let mut file = LibraryFile::open(&library).unwrap();
        file.check_sha256(&sha256).unwrap();
        file
    };
    // As it is.
    let file = checked();
    assert!(file.load().is_ok());
    // Another file under its name, which is loaded for the first time.
    let other = folder.c_plugin("other", "minimal.c", &[]);
    let mut hashed = LibraryFile::open(&other).unwrap();
    hashed.check_sha256(&sha256_of(&other).unwrap()).unwrap();
    let new = folder.write("new.so", std::fs::read(&library).unwrap());
    std::fs::rename(new, &other).unwrap();
    let refusal = hashed.load().err().expect("it was exchanged");
    assert_eq!(refusal.kind, RefusalKind::WrongHash, "{refusal}");
}

/// Processes that a library starts end with its probe.
#[cfg(target_os = "linux")]
#[test]
fn b27_all_of_a_probe_ends_with_it() {
    let folder = Folder::new();
    let library = folder.defect(&["DEFECT_FORK_AT_LOAD"]);
    let file = folder.path().join("child");
    // SAFETY: this test is alone in its process under nextest, and no other one reads the variable.
    unsafe { std::env::set_var("DEFECT_FILE", &file) };
    let refusal = probe(&library, &[], &prober(2000)).unwrap_err();
    assert!(refusal.reason.contains("did not answer"), "{refusal}");
    let child = std::fs::read_to_string(file).expect("it was started");
    // It may be left for its new parent to wait for.
    let has_ended = || {
        let state = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        let state = state.rsplit(')').next().unwrap_or_default().trim_start();
        state.is_empty() || state.starts_with(['Z', 'X'])
    };
    let begin = Instant::now();
    while !has_ended() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{child} lives on");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Output of a library, of any amount, is not mistaken for the probe's answer.
#[test]
fn b27_talkative_libraries_pass_the_probe() {
    let folder = Folder::new();
    let library = folder.defect(&["DEFECT_TALK_AT_LOAD"]);
    let result = probe(&library, &[], &prober(20_000)).unwrap();
    assert_eq!(result, ProbeResult { name: Some("minimal".into()), n_devices: Some(1), refusal: None });
    // Nor does it fill a report.
    let library = folder.c_plugin("dies", "defect.c", &["DEFECT_TALK_AT_LOAD", "DEFECT_CRASH_IN_CREATE"]);
    let refusal = probe(&library, &[], &prober(20_000)).unwrap_err();
    assert!(
        refusal.reason.contains("hello hello") && refusal.reason.len() < 1000,
        "{}",
        refusal.reason.len()
    );
}

#[test]
fn b27_options_reach_the_probe() {
    let options = [("devices".to_owned(), "gpu,npu,cpu".to_owned())];
    assert_eq!(probe(&faulty(), &options, &prober(20_000)).unwrap().n_devices, Some(3));
    for (fault, words, limit_ms) in
        [("abort@create", "signal 6", 20_000), ("hang@devices", "did not answer", 1000)]
    {
        let options = [("fault".to_owned(), fault.to_owned())];
        let refusal = probe(&faulty(), &options, &prober(limit_ms)).unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::FailedProbe);
        assert!(refusal.reason.contains(words), "{fault}: {refusal}");
    }
    // An orderly refusal is an answer.
    let options = [("fault".to_owned(), "panic@create".to_owned())];
    let result = probe(&faulty(), &options, &prober(20_000)).unwrap();
    assert_eq!(result.refusal.unwrap().0, "create-failed");
}

#[test]
fn b27_without_a_probe_unknown_libraries_are_refused() {
    let folder = Folder::new();
    folder.faulty("faulty");
    let unprobed = host(&[], &[&folder]);
    assert_eq!(unprobed.refusal().kind, RefusalKind::NotProbed);
    assert!(unprobed.refusal().reason.contains("not probed"), "{}", unprobed.refusal());
    assert!(unprobed.log.messages().is_empty());
    // A prober that is not there.
    let options = ProbeOptions::new(folder.path().join("absent"));
    let refusal = probe(&faulty(), &[], &options).unwrap_err();
    assert_eq!(refusal.kind, RefusalKind::NotProbed);
    assert!(refusal.reason.contains("cannot start"), "{refusal}");
    // One that says nothing.
    let options = ProbeOptions::new("true");
    assert_eq!(probe(&faulty(), &[], &options).unwrap_err().kind, RefusalKind::FailedProbe);
    assert!(!MARK.trim().is_empty());
}
