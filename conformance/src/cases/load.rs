//! The library, its one entry, and what the entry says.

use crate::case::Case;
use crate::lint::{is_of_abi, is_of_host, is_of_linker};
use crate::rig::Rig;
use crate::verdict::{Outcome, Why, ensure, failed, not_run};
use devbay_host::RefusalKind;
use devbay_host::internals::negotiate::Entry;
use devbay_plugin_api::abi::{Growable, PluginInfo, QUERY_SYMBOL};
use object::{Object, ObjectSymbol};

pub(crate) const CASES: &[Case] = &[
    Case {
        id: "load.entry",
        rules: &["B1"],
        requires: "the entry returns a pointer other than NULL",
        needs: &[],
        run: entry,
    },
    Case {
        id: "load.entry.same",
        rules: &["B1"],
        requires: "every call of the entry, from any thread, returns the same pointer to the same bytes",
        needs: &["load.entry"],
        run: same,
    },
    Case {
        id: "load.exports",
        rules: &["B1", "B28"],
        requires: "the library exports the entry, and no symbol that could clash with another library's",
        needs: &["load.entry"],
        run: exports,
    },
    Case {
        id: "load.imports",
        rules: &["B2"],
        requires: "the library imports no symbol from the host",
        needs: &["load.entry"],
        run: imports,
    },
    Case {
        id: "load.structs",
        rules: &["B4", "B5", "B20"],
        requires: "sizes, strides, texts and lists in the plugin's data are valid",
        needs: &["load.entry"],
        run: structs,
    },
    Case {
        id: "load.required",
        rules: &["B7"],
        requires: "no required function is missing",
        needs: &["load.structs"],
        run: required,
    },
    Case {
        id: "load.name",
        rules: &["B25"],
        requires: "the plugin's name matches [a-z][a-z0-9_-]*",
        needs: &["load.structs"],
        run: name,
    },
];

fn entry(rig: &Rig<'_>) -> Outcome {
    ensure!(!rig.query().is_null(), "the entry returned NULL");
    Ok(())
}

/// Returns the bytes of the plugin's data and of its table.
pub(crate) fn bytes_of(rig: &Rig<'_>) -> Vec<u8> {
    let info: *const PluginInfo = rig.query();
    // SAFETY: not NULL (`load.entry`), and the size field is there in every version; the plugin answers for the size
    // that it states (B4).
    let size = unsafe { info.cast::<u32>().read() } as usize;
    // SAFETY: `info` is not NULL, and has as many bytes as it says (B4).
    let mut bytes = unsafe { std::slice::from_raw_parts(info.cast::<u8>(), size) }.to_vec();
    // SAFETY: `info` is not NULL, and the table's place is in every version.
    let table = unsafe { (*info).table };
    if size >= PluginInfo::REQUIRED_SIZE && !table.is_null() {
        // SAFETY: `table` is not NULL, and the size field is there in every version.
        let size = unsafe { table.cast::<u32>().read() } as usize;
        // SAFETY: `table` has as many bytes as it says (B4).
        bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(table.cast::<u8>(), size) });
    }
    bytes
}

fn same(rig: &Rig<'_>) -> Outcome {
    let first = rig.query() as usize;
    let before = bytes_of(rig);
    let answers: Vec<usize> = std::thread::scope(|scope| {
        let asker = || (0..100).map(|_| rig.query() as usize).find(|&found| found != first).unwrap_or(first);
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(asker)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or(0)).collect()
    });
    ensure!(answers.iter().all(|&found| found == first), "the entry returned two different pointers");
    ensure!(before == bytes_of(rig), "the data that the entry returned changed since the first call");
    Ok(())
}

/// The file, read without loading it.
fn with_file(rig: &Rig<'_>, body: impl FnOnce(&object::File<'_>) -> Outcome) -> Outcome {
    let Entry::Library(library) = rig.entry else {
        return not_run(Why::OwnProcess, "the plugin is built into the program, so there is no file to read");
    };
    let bytes = match std::fs::read(library.path()) {
        Ok(bytes) => bytes,
        Err(error) => return failed(format!("cannot read {}: {error}", library.path().display())),
    };
    match object::File::parse(&*bytes) {
        Ok(file) => body(&file),
        Err(error) => failed(format!("cannot read the library's symbols: {error}")),
    }
}

fn exports(rig: &Rig<'_>) -> Outcome {
    let entry = QUERY_SYMBOL.to_string_lossy();
    with_file(rig, |file| {
        let names = file.dynamic_symbols().filter(|symbol| symbol.is_definition() && symbol.is_global());
        let names: Vec<String> = names.filter_map(|symbol| symbol.name().ok().map(str::to_owned)).collect();
        let ours = |name: &str| is_of_abi(name.strip_prefix('_').unwrap_or(name));
        ensure!(names.iter().any(|name| name.ends_with(&*entry)), "the library does not export {entry}");
        let mut others = names.iter().filter(|name| !ours(name) && !is_of_linker(name));
        match others.next() {
            None => Ok(()),
            Some(first) => failed(format!(
                "{} other symbols are exported, starting with {first}; link with a version script, or make them static",
                others.count() + 1
            )),
        }
    })
}

fn imports(rig: &Rig<'_>) -> Outcome {
    with_file(rig, |file| {
        let mut names = file.dynamic_symbols().filter(|symbol| symbol.is_undefined());
        let found = names.find_map(|symbol| symbol.name().ok().filter(|name| is_of_host(name)));
        match found {
            None => Ok(()),
            Some(name) => {
                failed(format!("the library imports {name} from the host; services come in a table"))
            }
        }
    })
}

fn structs(rig: &Rig<'_>) -> Outcome {
    match rig.agreement() {
        // Each has a case of its own.
        Err(refusal)
            if !matches!(
                refusal.kind,
                RefusalKind::MissingFunction | RefusalKind::BadName | RefusalKind::NoCommonVersion
            ) =>
        {
            failed(refusal.reason.clone())
        }
        _ => Ok(()),
    }
}

fn required(rig: &Rig<'_>) -> Outcome {
    match rig.agreement() {
        Err(refusal) if refusal.kind == RefusalKind::MissingFunction => failed(refusal.reason.clone()),
        _ => Ok(()),
    }
}

fn name(rig: &Rig<'_>) -> Outcome {
    match rig.agreement() {
        Err(refusal) if refusal.kind == RefusalKind::BadName => failed(refusal.reason.clone()),
        _ => Ok(()),
    }
}
