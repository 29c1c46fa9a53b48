//! Installs the C header as a package for builds with CMake or pkg-config: the files that
//! `plugin-api/packaging/CMakeLists.txt` installs, on machines without CMake.
//!
//! The templates there are the only source of these files; only the ABI's versions are filled in.

use anyhow::{Context, Result};
use clap::Args;
use std::fs;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct Arguments {
    /// Folder to install to, in include and share
    #[arg(long, value_name = "FOLDER")]
    prefix: PathBuf,
}

/// Template in `plugin-api/packaging`, and its installation folder.
const TEMPLATES: &[(&str, &str)] = &[
    ("devbay-plugin.pc", "share/pkgconfig"),
    ("devbay-plugin-config.cmake", "share/cmake/devbay-plugin"),
    ("devbay-plugin-config-version.cmake", "share/cmake/devbay-plugin"),
];

/// Installs the header and its package files, and prints their paths.
///
/// # Errors
/// If a file cannot be read or written; earlier files are already installed then.
pub fn run(arguments: &Arguments) -> Result<()> {
    for path in install(&arguments.prefix)? {
        println!("{}", path.display());
    }
    Ok(())
}

/// Installs, and returns the written files.
fn install(prefix: &Path) -> Result<Vec<PathBuf>> {
    let source = crate::abi::repository_root().join("plugin-api");
    let header = source.join("include/devbay_plugin.h");
    let header = read(&header)?;
    let (minor, oldest) = (number(&header, "DEVBAY_ABI_MINOR")?, number(&header, "DEVBAY_ABI_MINOR_MIN")?);
    let helpers = read(&source.join("include/devbay_helpers.h"))?;
    let mut written = vec![
        write(prefix, "include", "devbay_plugin.h", &header)?,
        write(prefix, "include", "devbay_helpers.h", &helpers)?,
    ];
    for (name, folder) in TEMPLATES {
        let template = read(&source.join("packaging").join(format!("{name}.in")))?;
        let text = template
            .replace("@DEVBAY_ABI_MINOR@", &minor.to_string())
            .replace("@DEVBAY_ABI_MINOR_MIN@", &oldest.to_string());
        written.push(write(prefix, folder, name, &text)?);
    }
    Ok(written)
}

/// Returns a number from the header: this program does not depend on the crate whose tables it writes.
pub fn number(header: &str, name: &str) -> Result<u32> {
    let begin = format!("#define {name} UINT32_C(");
    let line = header.lines().find_map(|line| line.strip_prefix(&begin));
    let digits = line.and_then(|rest| rest.split(')').next());
    let number = digits.and_then(|digits| digits.parse().ok());
    number.with_context(|| format!("the header does not define {name}"))
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn write(prefix: &Path, folder: &str, name: &str, text: &str) -> Result<PathBuf> {
    let folder = prefix.join(folder);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let path = folder.join(name);
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

#[cfg(test)]
pub mod tests {
    use super::{TEMPLATES, install, number, read};
    use crate::abi::repository_root;
    use std::ffi::OsStr;
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::process::Command;

    fn minor() -> u32 {
        let header = read(&repository_root().join("plugin-api/include/devbay_plugin.h")).expect("the header");
        number(&header, "DEVBAY_ABI_MINOR").expect("its minor")
    }

    /// A test's own folder, removed at its end.
    pub struct Folder(pub PathBuf);

    impl Folder {
        pub fn new(test: &str) -> Self {
            let path = std::env::temp_dir().join(format!("devbay-header-{test}-{}", std::process::id()));
            fs::create_dir_all(&path).expect("a temporary folder");
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// Runs a command and returns its output.
    #[track_caller]
    pub fn run(command: &mut Command) -> String {
        let output = command.output().unwrap_or_else(|e| panic!("cannot start {command:?}: {e}"));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{command:?} ended with {}:\n{out}{err}", output.status);
        out
    }

    /// Returns whether a tool is installed; prints a note if not.
    ///
    /// # Panics
    /// If it is missing and `DEVBAY_REQUIRE` contains the word `cmake`.
    pub fn has(tool: &str) -> bool {
        if Command::new(tool).arg("--version").output().is_ok_and(|output| output.status.success()) {
            return true;
        }
        let required = std::env::var("DEVBAY_REQUIRE").unwrap_or_default();
        let is_required = required.split([',', ' ']).any(|word| word == "cmake");
        assert!(!is_required, "expected {tool}, which the word cmake in DEVBAY_REQUIRE asks for");
        eprintln!("not run: {tool} is not installed");
        false
    }

    /// Builds the smallest plugin with pkg-config's flags for an installed header.
    fn builds_with_pkg_config(prefix: &Path) {
        let ask = |question: &str| {
            let mut command = Command::new("pkg-config");
            command
                .args([question, "devbay-plugin"])
                .env("PKG_CONFIG_LIBDIR", prefix.join("share/pkgconfig"));
            run(&mut command)
        };
        assert_eq!(ask("--modversion").trim(), format!("0.{}", minor()));
        let flags = ask("--cflags");
        let library = prefix.join("libdevbay_plugin_minimal.so");
        let mut compiler = Command::new("cc");
        compiler.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]);
        compiler.args(flags.split_whitespace()).arg("-o").arg(&library);
        run(compiler.arg(repository_root().join("conformance/fixtures/minimal.c")));
        assert!(library.exists());
    }

    /// Configures a project that requires a version of the package; returns CMake's success and output.
    fn configures(folder: &Path, prefix: &Path, version: &str) -> (bool, String) {
        let source = folder.join("project");
        fs::create_dir_all(&source).expect("a folder");
        let minimal = repository_root().join("conformance/fixtures/minimal.c");
        let text = format!(
            "cmake_minimum_required(VERSION 3.16)\n\
             project(vendor LANGUAGES C)\n\
             find_package(devbay-plugin {version} REQUIRED)\n\
             add_library(devbay_plugin_minimal SHARED \"{}\")\n\
             target_link_libraries(devbay_plugin_minimal PRIVATE devbay::plugin)\n",
            minimal.display()
        );
        fs::write(source.join("CMakeLists.txt"), text).expect("a file");
        let build = folder.join("vendor");
        let _ = fs::remove_dir_all(&build);
        let mut command = Command::new("cmake");
        command
            .arg("-S")
            .arg(&source)
            .arg("-B")
            .arg(&build)
            .arg("-DCMAKE_PREFIX_PATH=".to_owned() + path(prefix));
        let output = command.output().expect("cmake starts");
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    fn path(path: &Path) -> &str {
        path.to_str().expect("a temporary folder's name is UTF-8")
    }

    #[test]
    fn a_header_that_cmake_installs_is_found_by_builds() {
        if !has("cmake") {
            return;
        }
        let folder = Folder::new("cmake");
        let (build, first) = (folder.0.join("build"), folder.0.join("first"));
        let packaging = repository_root().join("plugin-api/packaging");
        run(Command::new("cmake").arg("-S").arg(&packaging).arg("-B").arg(&build));
        run(Command::new("cmake").arg("--install").arg(&build).arg("--prefix").arg(&first));
        // The installation is relocatable as a whole.
        let prefix = folder.0.join("moved");
        fs::rename(&first, &prefix).expect("a folder can be moved");

        let this = format!("0.{}", minor());
        let (found, said) = configures(&folder.0, &prefix, &this);
        assert!(found, "{said}");
        run(Command::new("cmake").arg("--build").arg(folder.0.join("vendor")));
        assert!(folder.0.join("vendor/libdevbay_plugin_minimal.so").exists());
        let next = format!("0.{}", minor() + 1);
        let from_this = format!("{this}...1");
        let older = [("0.1", false), ("0.2", false)];
        let others = [("", true), (&*this, true), (&*next, false), ("1.0", false), (&*from_this, true)];
        for (version, fits) in others.into_iter().chain(older) {
            let (found, said) = configures(&folder.0, &prefix, version);
            assert_eq!(found, fits, "find_package(devbay-plugin {version}): {said}");
            assert!(fits || said.contains(&format!("version: {this}")), "{said}");
        }
        if has("pkg-config") {
            builds_with_pkg_config(&prefix);
        }
    }

    #[test]
    fn without_cmake_the_same_files_are_installed() {
        let folder = Folder::new("xtask");
        let ours = folder.0.join("ours");
        let written = install(&ours).expect("a header can be installed");
        assert_eq!(written.len(), 2 + TEMPLATES.len());
        for path in &written {
            let text = read(path).expect("what was written");
            let is_header = path.extension() == Some(OsStr::new("h"));
            assert!(
                is_header || !text.contains("@DEVBAY"),
                "{} has a place that was not filled in",
                path.display()
            );
        }
        if has("pkg-config") {
            builds_with_pkg_config(&ours);
        }
        if has("cmake") {
            let (build, theirs) = (folder.0.join("build"), folder.0.join("theirs"));
            let packaging = repository_root().join("plugin-api/packaging");
            run(Command::new("cmake").arg("-S").arg(&packaging).arg("-B").arg(&build));
            run(Command::new("cmake").arg("--install").arg(&build).arg("--prefix").arg(&theirs));
            for path in &written {
                let place = path.strip_prefix(&ours).expect("a path below the prefix");
                assert_eq!(
                    read(path).expect("ours"),
                    read(&theirs.join(place)).expect("CMake's"),
                    "{}",
                    place.display()
                );
            }
        }
    }
}
