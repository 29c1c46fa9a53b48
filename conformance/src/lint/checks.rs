//! The kinds of findings: one entry each, with the words that are the same for every library.
//!
//! `docs/lint.md` has a section for each, under its id; a test compares the two.

use super::Severity;
use serde::Serialize;

/// A kind of finding.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Check {
    /// Its stable name, which is also its section in `docs/lint.md`.
    pub id: &'static str,
    /// Severity of its findings.
    pub severity: Severity,
    /// The rules of the ABI that it concerns; none for what every shared library should be.
    pub rules: &'static [&'static str],
    /// Why it hurts.
    pub why: &'static str,
    /// Advice for mending it.
    pub mend: &'static str,
}

/// Every kind of finding.
pub const CHECKS: &[&Check] = &[
    &ENTRY_MISSING,
    &IMPORTS_HOST,
    &IMPORTS_UNRESOLVED,
    &EXPORTS_UNIQUE,
    &EXPORTS_EXTRA,
    &CONSTRUCTORS_INSTRUCTIONS,
    &NEEDED_DRIVER,
    &NEEDED_PATH,
    &NEEDED_MISSING,
    &RUNPATH_RELATIVE,
    &RUNPATH_ABSOLUTE,
    &STACK_EXECUTABLE,
    &TEXT_RELOCATIONS,
    &TLS_STATIC,
    &SONAME_MISSING,
];

pub(super) static ENTRY_MISSING: Check = Check {
    id: "entry.missing",
    severity: Severity::Error,
    rules: &["B1"],
    why: "hosts find a plugin by this symbol, and refuse a library without it",
    mend: "define it with default visibility, and name it under `global:` in the version script",
};

pub(super) static IMPORTS_HOST: Check = Check {
    id: "imports.host",
    severity: Severity::Error,
    rules: &["B2", "B28"],
    why: "plugins import nothing from the host: if no host exports the symbol the library does not load, and if \
          one does its version may differ",
    mend: "take services from the table that `create` receives, and compile helpers into the plugin",
};

pub(super) static IMPORTS_UNRESOLVED: Check = Check {
    id: "imports.unresolved",
    severity: Severity::Error,
    rules: &["B2", "B26"],
    why: "no needed library exports it, so the loader searches the process, and the load fails if the process lacks it",
    mend: "link the library that exports it (`-lm`, `-lstdc++`), or compile it in; `-Wl,-z,defs` reports it at \
           link time",
};

pub(super) static EXPORTS_UNIQUE: Check = Check {
    id: "exports.unique",
    severity: Severity::Error,
    rules: &["B26", "B28"],
    why: "the loader keeps one copy of each unique symbol per process, even under RTLD_LOCAL: plugins share each \
          other's state, and the library is never unloaded",
    mend: "compile with `-fno-gnu-unique` (GCC) and `-fvisibility=hidden`, and link with a version script that ends \
           with `local: *;`",
};

pub(super) static EXPORTS_EXTRA: Check = Check {
    id: "exports.extra",
    severity: Severity::Warning,
    rules: &["B1", "B28"],
    why: "a symbol of the same name in the process replaces the plugin's own, even inside the plugin",
    mend: "make them static or hidden (`-fvisibility=hidden`), or link with a version script that ends with `local: *;` \
           (static libraries: `-Wl,--exclude-libs,ALL`)",
};

pub(super) static CONSTRUCTORS_INSTRUCTIONS: Check = Check {
    id: "constructors.instructions",
    severity: Severity::Warning,
    rules: &["B1"],
    why: "it runs when the library is loaded, and ends the process on a processor without it; code behind a \
          processor check is harmless, but lint cannot see the check",
    mend: "compile files with static initialisers for the baseline (no `-mavx2`, no `-march=native`), or compute \
           the value in `create`",
};

pub(super) static NEEDED_DRIVER: Check = Check {
    id: "needed.driver",
    severity: Severity::Warning,
    rules: &["B1", "B25"],
    why: "if it is not installed, the library does not load and the user sees only the loader's message; if it \
          is, loading starts a driver that may not be needed",
    mend: "open it at run time (`dlopen` in `create` or `devices`), and list no device if it is missing",
};

pub(super) static NEEDED_PATH: Check = Check {
    id: "needed.path",
    severity: Severity::Error,
    rules: &[],
    why: "the loader looks for the library only at that path, which other machines do not have",
    mend: "link it with `-L FOLDER -l NAME`, and give it a name of its own when building it (`-Wl,-soname,NAME`)",
};

pub(super) static NEEDED_MISSING: Check = Check {
    id: "needed.missing",
    severity: Severity::Warning,
    rules: &[],
    why: "this machine's loader does not find it, so the load fails on every machine like this one",
    mend: "ship it beside the plugin (`-Wl,-rpath,'$ORIGIN'`), link it statically, or tell users which package \
           provides it",
};

pub(super) static RUNPATH_RELATIVE: Check = Check {
    id: "runpath.relative",
    severity: Severity::Error,
    rules: &[],
    why: "the loader takes libraries from the process's current folder, which others may be able to write to",
    mend: "make it relative to the library's own folder: `-Wl,-rpath,'$ORIGIN'`",
};

pub(super) static RUNPATH_ABSOLUTE: Check = Check {
    id: "runpath.absolute",
    severity: Severity::Warning,
    rules: &[],
    why: "every other machine first searches the build machine's folder, which is missing there or belongs to \
          someone else",
    mend: "name folders relative to the library (`-Wl,-rpath,'$ORIGIN'`), or remove it (`patchelf \
           --remove-rpath`; in CMake CMAKE_BUILD_RPATH_USE_ORIGIN or an install)",
};

pub(super) static STACK_EXECUTABLE: Check = Check {
    id: "stack.executable",
    severity: Severity::Error,
    rules: &[],
    why: "since glibc 2.41 a running process cannot load such a library; older versions make all stacks of the \
          process executable",
    mend: "end assembly files with `.section .note.GNU-stack,\"\",@progbits`, avoid GCC nested functions whose \
           address is taken, and link with `-Wl,-z,noexecstack`",
};

pub(super) static TEXT_RELOCATIONS: Check = Check {
    id: "text.relocations",
    severity: Severity::Warning,
    rules: &[],
    why: "the loader must write to code: SELinux and other hardened systems refuse that, and processes cannot \
          share the pages",
    mend: "compile everything with `-fPIC`, including static libraries and assembly; `-Wl,-z,text` reports code \
           compiled without it",
};

pub(super) static TLS_STATIC: Check = Check {
    id: "tls.static",
    severity: Severity::Warning,
    rules: &["B26"],
    why: "its thread-local variables need space in a small reserve that all libraries of the process share, and \
          the load fails when that is exhausted",
    mend: "compile without `-ftls-model=initial-exec` (including static libraries, such as allocators)",
};

pub(super) static SONAME_MISSING: Check = Check {
    id: "soname.missing",
    severity: Severity::Warning,
    rules: &[],
    why: "programs that link the plugin record its build path, and package tools have no name to check",
    mend: "link with `-Wl,-soname,FILE`; in Rust print `cargo::rustc-link-arg=-Wl,-soname,FILE` in build.rs",
};
