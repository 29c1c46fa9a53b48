//! Models: programs that were read from a file, shared by all sessions of a process.

use crate::import::{self, Reading};
use devbay_core::device::Device;
use devbay_core::error::{Error, ErrorKind, Result};
use devbay_core::exec::unit::Unit;
use devbay_core::plan::{Env, Placement, PlanOptions};
use devbay_core::program::{Program, Region};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::SystemTime;

/// A program, imported once. Clones share it.
#[derive(Clone)]
pub struct Model {
    inner: Arc<Inner>,
}

struct Inner {
    program: Program,
    /// The program as each device runs it, with its plans and packed constants. A device is known by its
    /// address, which its unit keeps in use.
    units: Mutex<Vec<Weak<Unit>>>,
}

/// What tells whether a file is the one that was read before.
#[derive(Clone, PartialEq, Eq, Hash)]
struct FileKey {
    path: std::path::PathBuf,
    len: u64,
    modified: Option<SystemTime>,
}

static LOADED: OnceLock<Mutex<HashMap<FileKey, Weak<Inner>>>> = OnceLock::new();

impl Model {
    /// Reads a model file, or gives the one that this process has of it.
    ///
    /// # Errors
    /// What the importer says.
    pub fn load(path: &Path) -> Result<Self> {
        let failed = |e: std::io::Error| {
            Error::new(ErrorKind::Io, format!("cannot read the model: {e}"))
                .in_file(path.display())
                .because(e)
        };
        let metadata = std::fs::metadata(path).map_err(failed)?;
        let key = FileKey {
            path: path.canonicalize().map_err(failed)?,
            len: metadata.len(),
            modified: metadata.modified().ok(),
        };
        let loaded = LOADED.get_or_init(Mutex::default);
        if let Some(inner) = lock(loaded).get(&key).and_then(Weak::upgrade) {
            return Ok(Self { inner });
        }
        let model = Self::from_program(import::open(path, Reading::Mapped)?);
        let mut loaded = lock(loaded);
        loaded.retain(|_, inner| inner.strong_count() > 0);
        // Of two threads that read it at once, one result is kept for those who come after.
        loaded.insert(key, Arc::downgrade(&model.inner));
        Ok(model)
    }

    /// A model from a program that is already there.
    pub fn from_program(program: Program) -> Self {
        Self { inner: Arc::new(Inner { program, units: Mutex::default() }) }
    }

    /// The program as imported.
    pub fn program(&self) -> &Program {
        &self.inner.program
    }

    /// The program as a device runs it, shared by all sessions of this model on that device.
    ///
    /// # Errors
    /// What the passes say.
    pub fn on_device(&self, device: &Arc<Device>) -> Result<Arc<Unit>> {
        self.placed(&Placement::on(device), PlanOptions::default())
    }

    /// As [`Model::on_device`], for several devices, shared by the sessions that have the same and these options.
    ///
    /// # Errors
    /// What the passes say; [`ErrorKind::InvalidArgument`] for a pin of a node that the program does not have.
    pub fn placed(&self, placement: &Placement, options: PlanOptions) -> Result<Arc<Unit>> {
        let mut units = lock(&self.inner.units);
        units.retain(|unit| unit.strong_count() > 0);
        let shared = units
            .iter()
            .filter_map(Weak::upgrade)
            .find(|unit| unit.env().placement == *placement && unit.env().options == options);
        if let Some(unit) = shared {
            return Ok(unit);
        }
        let unit = Arc::new(Unit::of_model(&self.inner.program, Env::placed(placement, options))?);
        for (name, device) in &placement.pins {
            let checked = check_pin(&self.inner.program, unit.program(), name);
            checked.map_err(|error| error.on_device(device.name()))?;
        }
        units.push(Arc::downgrade(&unit));
        Ok(unit)
    }
}

/// Refuses a pin that would do nothing.
fn check_pin(imported: &Program, optimised: &Program, name: &str) -> Result<()> {
    if has_node(&optimised.main, name) {
        return Ok(());
    }
    let text = match has_node(&imported.main, name) {
        true => format!("node `{name}` cannot be pinned: it became part of another, or is not needed"),
        false => format!("there is no node `{name}` to be pinned"),
    };
    Err(Error::new(ErrorKind::InvalidArgument, text))
}

fn has_node(region: &Region, name: &str) -> bool {
    region.nodes.iter().any(|node| {
        (!name.is_empty() && &*node.name == name)
            || node.regions.iter().any(|(_, region)| has_node(region, name))
    })
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
