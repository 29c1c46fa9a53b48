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
    why: "a host finds a plugin by this symbol and refuses a library without it",
    mend: "define it with default visibility, and name it under `global:` in the version script",
};

pub(super) static IMPORTS_HOST: Check = Check {
    id: "imports.host",
    severity: Severity::Error,
    rules: &["B2", "B28"],
    why: "a plugin imports nothing from the host: where no host exports it the library does not load, and where one \
          does it may be another version",
    mend: "take services from the table that `create` is given, and compile helpers into the plugin",
};

pub(super) static IMPORTS_UNRESOLVED: Check = Check {
    id: "imports.unresolved",
    severity: Severity::Error,
    rules: &["B2", "B26"],
    why: "no library that the plugin needs has it, so it is looked for in the process, and the load fails where that \
          has none",
    mend: "link the library that has it (`-lm`, `-lstdc++`), or compile it in; `-Wl,-z,defs` finds it when linking",
};

pub(super) static EXPORTS_UNIQUE: Check = Check {
    id: "exports.unique",
    severity: Severity::Error,
    rules: &["B26", "B28"],
    why: "the loader keeps one of each unique symbol in a process, whatever RTLD_LOCAL says: plugins share state that \
          is not theirs, and the library is never unloaded",
    mend: "compile with `-fno-gnu-unique` (GCC) and `-fvisibility=hidden`, and link with a version script that ends \
           with `local: *;`",
};

pub(super) static EXPORTS_EXTRA: Check = Check {
    id: "exports.extra",
    severity: Severity::Warning,
    rules: &["B1", "B28"],
    why: "a symbol of the same name in the process is taken instead of the plugin's own, also by the plugin itself",
    mend: "make them static or hidden (`-fvisibility=hidden`), or link with a version script that ends with `local: *;` \
           (static libraries: `-Wl,--exclude-libs,ALL`)",
};

pub(super) static CONSTRUCTORS_INSTRUCTIONS: Check = Check {
    id: "constructors.instructions",
    severity: Severity::Warning,
    rules: &["B1"],
    why: "it runs when the library is loaded, and ends the process on a processor without it; behind a check of the \
          processor it is harmless, which cannot be seen from here",
    mend: "compile files with static initialisers for the baseline (no `-mavx2`, no `-march=native`), or calculate the \
           value at `create`",
};

pub(super) static NEEDED_DRIVER: Check = Check {
    id: "needed.driver",
    severity: Severity::Warning,
    rules: &["B1", "B25"],
    why: "where it is not installed the library does not load, and nobody learns more than the loader's one line; with \
          it, loading starts a driver that nobody asked for",
    mend: "open it at run time (`dlopen` in `create` or `devices`), and say that no device is there where it is not",
};

pub(super) static NEEDED_PATH: Check = Check {
    id: "needed.path",
    severity: Severity::Error,
    rules: &[],
    why: "the library is looked for at that place alone, which other machines do not have",
    mend: "link it with `-L FOLDER -l NAME`, and give it a name of its own when it is built (`-Wl,-soname,NAME`)",
};

pub(super) static NEEDED_MISSING: Check = Check {
    id: "needed.missing",
    severity: Severity::Warning,
    rules: &[],
    why: "this machine's loader does not find it, and the load fails on every machine that is like this one",
    mend: "ship it beside the plugin (`-Wl,-rpath,'$ORIGIN'`), link it statically, or tell users which package has it",
};

pub(super) static RUNPATH_RELATIVE: Check = Check {
    id: "runpath.relative",
    severity: Severity::Error,
    rules: &[],
    why: "libraries are taken from whatever folder the process happens to be in, also from one that somebody else \
          writes to",
    mend: "begin it with the library's own folder: `-Wl,-rpath,'$ORIGIN'`",
};

pub(super) static RUNPATH_ABSOLUTE: Check = Check {
    id: "runpath.absolute",
    severity: Severity::Warning,
    rules: &[],
    why: "the folder of one machine's build is looked in first on every other: it is not there, or belongs to somebody \
          else",
    mend: "name folders from where the library lies (`-Wl,-rpath,'$ORIGIN'`), or remove it (`patchelf --remove-rpath`; \
           in CMake CMAKE_BUILD_RPATH_USE_ORIGIN or an install)",
};

pub(super) static STACK_EXECUTABLE: Check = Check {
    id: "stack.executable",
    severity: Severity::Error,
    rules: &[],
    why: "since glibc 2.41 such a library does not load into a running process, and before it made all stacks of the \
          process executable",
    mend: "end files in assembly with `.section .note.GNU-stack,\"\",@progbits`, use no nested functions of GCC whose \
           address is taken, link with `-Wl,-z,noexecstack`",
};

pub(super) static TEXT_RELOCATIONS: Check = Check {
    id: "text.relocations",
    severity: Severity::Warning,
    rules: &[],
    why: "the loader has to write into code: SELinux and other hardened systems refuse that, and no two processes share \
          the pages",
    mend: "compile everything with `-fPIC`, also static libraries and assembly; `-Wl,-z,text` finds code that was not",
};

pub(super) static TLS_STATIC: Check = Check {
    id: "tls.static",
    severity: Severity::Warning,
    rules: &["B26"],
    why: "its thread-local variables want room in a small reserve that all libraries of the process share, and the load \
          fails when that is used up",
    mend: "compile without `-ftls-model=initial-exec` (also static libraries, such as allocators)",
};

pub(super) static SONAME_MISSING: Check = Check {
    id: "soname.missing",
    severity: Severity::Warning,
    rules: &[],
    why: "programs that link the plugin record the path that it was built at, and package tools have no name to check",
    mend: "link with `-Wl,-soname,FILE`; in Rust print `cargo::rustc-link-arg-cdylib=-Wl,-soname,FILE` in build.rs",
};
