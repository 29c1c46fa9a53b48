//! Installs devbay for C: the library, its headers, the program that tries unknown plugins, and the files by which CMake and
//! pkg-config find them. The installed folder can be moved.

use crate::abi::repository_root;
use crate::{python, target_folder};
use anyhow::{Context, Result, ensure};
use clap::Args;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Args)]
pub struct Arguments {
    /// Folder to install to, in bin, include, lib and share
    #[arg(long, value_name = "FOLDER")]
    prefix: PathBuf,
    /// Build in release before
    #[arg(long)]
    release: bool,
}

/// Template in `host/c/packaging`, and its installation folder.
const TEMPLATES: [(&str, &str); 3] = [
    ("devbay.pc", "share/pkgconfig"),
    ("devbay-config.cmake", "share/cmake/devbay"),
    ("devbay-config-version.cmake", "share/cmake/devbay"),
];

/// Builds what is installed, installs it, and prints the paths.
///
/// # Errors
/// If it does not build, or a file cannot be written.
pub fn run(arguments: &Arguments) -> Result<()> {
    let mut build = Command::new(env!("CARGO"));
    build.current_dir(repository_root()).args(["build", "--package", "devbay-c", "--package", "devbay-host"]);
    if arguments.release {
        build.arg("--release");
    }
    python::run(&mut build)?;
    let profile = if arguments.release { "release" } else { "debug" };
    let built = target_folder()?.join(profile);
    for path in install(&built, &arguments.prefix)? {
        println!("{}", path.display());
    }
    Ok(())
}

/// Installs what is in `built`, and returns the files.
fn install(built: &Path, prefix: &Path) -> Result<Vec<PathBuf>> {
    let sources = repository_root().join("host/c");
    let version = env!("CARGO_PKG_VERSION");
    let library = prefix.join("lib").join(format!("libdevbay.so.{version}"));
    copy(&built.join("libdevbay.so"), &library)?;
    let mut written = vec![library.clone()];
    for name in ["libdevbay.so.0", "libdevbay.so"] {
        let link = library.with_file_name(name);
        let _ = fs::remove_file(&link);
        let target = format!("libdevbay.so.{version}");
        std::os::unix::fs::symlink(target, &link)
            .with_context(|| format!("cannot make {}", link.display()))?;
        written.push(link);
    }
    let probe = prefix.join("bin/devbay-probe");
    copy(&built.join("devbay-probe"), &probe)?;
    written.push(probe);
    for name in ["devbay.h", "devbay.hpp"] {
        let header = prefix.join("include").join(name);
        copy(&sources.join("include").join(name), &header)?;
        written.push(header);
    }
    for (name, folder) in TEMPLATES {
        let template = sources.join("packaging").join(format!("{name}.in"));
        let text = fs::read_to_string(&template)
            .with_context(|| format!("cannot read {}", template.display()))?
            .replace("@VERSION@", version);
        let path = prefix.join(folder).join(name);
        make_folder_of(&path)?;
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        written.push(path);
    }
    Ok(written)
}

fn make_folder_of(path: &Path) -> Result<()> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    ensure!(from.exists(), "expected {}: cargo build --workspace", from.display());
    make_folder_of(to)?;
    // A file that a running program uses is replaced, not written to.
    let _ = fs::remove_file(to);
    fs::copy(from, to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::install;
    use crate::abi::repository_root;
    use crate::header_package::tests::{Folder, has, run};
    use std::path::Path;
    use std::process::Command;

    /// Installs what the workspace's build made, and moves it.
    fn installed(folder: &Folder) -> std::path::PathBuf {
        let first = folder.0.join("first");
        let program = std::env::current_exe().expect("this program's path");
        let built = program.ancestors().nth(2).expect("cargo builds tests two folders deep");
        install(built, &first).expect("an installation");
        let prefix = folder.0.join("moved");
        std::fs::rename(&first, &prefix).expect("a folder can be moved");
        prefix
    }

    /// Runs an example on a picture of a three.
    fn classify(program: &Path, prefix: &Path) -> String {
        let root = repository_root();
        let mut command = Command::new(program);
        command.arg(root.join("models/mnist_cnn/model.onnx")).arg(root.join("host/c/examples/three.pgm"));
        run(command.env("LD_LIBRARY_PATH", prefix.join("lib")))
    }

    #[test]
    fn the_examples_build_with_cmake_and_say_what_the_picture_shows() {
        if !has("cmake") {
            return;
        }
        let folder = Folder::new("c-cmake");
        let prefix = installed(&folder);
        let build = folder.0.join("build");
        let sanitizers = "-fsanitize=address,undefined -fno-sanitize-recover=all";
        let mut configure = Command::new("cmake");
        configure.arg("-S").arg(repository_root().join("host/c/examples")).arg("-B").arg(&build);
        configure.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display()));
        configure.arg(format!("-DCMAKE_C_FLAGS={sanitizers}")).arg(format!("-DCMAKE_CXX_FLAGS={sanitizers}"));
        run(&mut configure);
        run(Command::new("cmake").arg("--build").arg(&build).args(["--parallel", "2"]));
        assert_eq!(classify(&build.join("classify"), &prefix), "digit 3\n");
        assert_eq!(classify(&build.join("classify_cpp"), &prefix), "digit 3\n".repeat(8));
    }

    #[test]
    fn an_example_builds_with_pkg_config() {
        if !has("pkg-config") {
            return;
        }
        let folder = Folder::new("c-pkg-config");
        let prefix = installed(&folder);
        let mut ask = Command::new("pkg-config");
        ask.args(["--cflags", "--libs", "devbay"]).env("PKG_CONFIG_LIBDIR", prefix.join("share/pkgconfig"));
        let flags = run(&mut ask);
        let program = folder.0.join("classify");
        let mut compiler = Command::new("cc");
        compiler.args(["-std=c11", "-Wall", "-Wextra", "-Werror"]);
        compiler.arg(repository_root().join("host/c/examples/classify.c")).args(flags.split_whitespace());
        run(compiler.arg("-o").arg(&program));
        assert_eq!(classify(&program, &prefix), "digit 3\n");
    }
}
