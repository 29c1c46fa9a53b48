//! Models: programs read from a file, shared by all sessions of a process.

use crate::dbx::{self, Checks, Compiled};
use crate::forks;
use crate::import::{self, Defaults, Imported, ModelFormat, ModelInfo, Reading};
use crate::values::session::HostModel;
use bytes::Bytes;
use devbay_core::device::Device;
use devbay_core::error::{Error, ErrorKind, Result};
use devbay_core::exec::unit::Unit;
use devbay_core::plan::ahead::Specialised;
use devbay_core::plan::{Env, Placement, PlanOptions};
use devbay_core::program::verify::verify;
use devbay_core::program::{Program, Region, text};
use devbay_core::tensor::{Tensor, TensorType};
use devbay_plugin_api::locks::lock;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::SystemTime;

/// A program, imported once. Clones share it.
#[derive(Clone)]
pub struct Model {
    inner: Arc<Inner>,
}

struct Inner {
    program: Program,
    info: ModelInfo,
    /// Default values of inputs, by name.
    defaults: Vec<(String, Tensor)>,
    /// True if the importer verified it.
    is_verified: bool,
    /// Results of ahead-of-time compilation, if its file has them; `program` is then the compiled program.
    compiled: Option<Compiled>,
    /// The program as each device runs it, with its plans and packed constants. A device is known by its address, which its
    /// unit keeps in use.
    units: Mutex<Vec<Weak<Unit>>>,
    /// The graph and the segments of a model that the host interprets; `program` is then all of its segments side by side.
    host: Option<Arc<HostModel>>,
}

/// Identity of a file, to recognise one that was read before.
#[derive(Clone, PartialEq, Eq, Hash)]
struct FileKey {
    path: PathBuf,
    /// Folder of the given path, which holds its data files: in a cache of links one file may appear in several folders.
    folder: PathBuf,
    len: u64,
    modified: Option<SystemTime>,
    reading: Reading,
    /// A forked child reads it again: plans of the model have threads of its parent.
    process: u32,
}

/// Options for reading a model's files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LoadOptions {
    /// Checks of a compiled model; other models have no checksums.
    pub checks: Checks,
    /// Mapping or copying of files.
    pub reading: Reading,
}

static LOADED: OnceLock<Mutex<HashMap<FileKey, Weak<Inner>>>> = OnceLock::new();

impl Model {
    /// Reads a model file, or returns the copy that this process already has: ONNX, a program in text form, or a file of
    /// [`Session::compile_to`](crate::Session::compile_to).
    ///
    /// The file is mapped ([`Reading::Mapped`]): if another process shortens it while it is in use, this process dies of
    /// SIGBUS. [`Model::load_with`] can copy it instead.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if a file cannot be read, [`ErrorKind::InvalidModel`] if the model is damaged or breaks ONNX's
    /// rules, [`ErrorKind::UnsupportedModel`] if it uses features that devbay lacks; with the file, and the node if one is
    /// at fault.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        Self::load_with(path, LoadOptions::default())
    }

    /// Reads a model as [`Model::load`] does, with options.
    ///
    /// # Errors
    /// As [`Model::load`]; [`ErrorKind::InvalidModel`] for weights that do not match their checksums;
    /// [`ErrorKind::OutOfMemory`] if copying a file exceeds memory.
    pub fn load_with(path: impl AsRef<Path>, options: LoadOptions) -> Result<Self> {
        let path = path.as_ref();
        let LoadOptions { checks, reading } = options;
        let failed = |e: std::io::Error| {
            Error::new(ErrorKind::of_io(&e), format!("cannot read the model: {e}"))
                .in_file(path.display())
                .because(e)
        };
        let metadata = std::fs::metadata(path).map_err(failed)?;
        let key = FileKey {
            path: path.canonicalize().map_err(failed)?,
            folder: folder_of(path).canonicalize().map_err(failed)?,
            len: metadata.len(),
            modified: metadata.modified().ok(),
            reading,
            process: forks::generation(),
        };
        let loaded = LOADED.get_or_init(Mutex::default);
        let known = lock(loaded).get(&key).and_then(Weak::upgrade);
        // A request to check the weights means the file as it is now.
        if let Some(inner) = known.filter(|_| checks == Checks::Head) {
            return Ok(Self { inner });
        }
        let model = match dbx::is_compiled(path) {
            true => Self::of_compiled(dbx::read(path, reading, checks)?),
            false => Self::of_imported(import::open_all(path, reading, Defaults::Constants)?),
        };
        let mut loaded = lock(loaded);
        loaded.retain(|_, inner| inner.strong_count() > 0);
        // If two threads read it at once, later callers share one of the results.
        loaded.insert(key, Arc::downgrade(&model.inner));
        Ok(model)
    }

    /// Reads a model in memory, in any format of [`Model::load`]. All checksums of a compiled model are checked.
    ///
    /// # Errors
    /// As [`Model::load`]; [`ErrorKind::UnsupportedModel`] for a model with data in other files.
    pub fn from_bytes(bytes: impl Into<Bytes>) -> Result<Self> {
        let bytes = bytes.into();
        match dbx::is_compiled_content(&bytes) {
            true => Self::from_compiled(bytes, Checks::Weights),
            false => Ok(Self::of_imported(import::all_from_bytes(bytes, None, Defaults::Constants)?)),
        }
    }

    /// Reads a compiled model from the content of its file, with chosen checks.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidModel`] for content that is damaged, truncated, of another version, or not a compiled model.
    pub fn from_compiled(file: impl Into<Bytes>, checks: Checks) -> Result<Self> {
        Ok(Self::of_compiled(dbx::from_bytes(file.into(), checks)?))
    }

    /// Reads a program in text form.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidModel`] with the line and column.
    pub fn from_text(text: &str) -> Result<Self> {
        Ok(Self::of_program(text::parse(text)?, ModelInfo::of(ModelFormat::Text), false))
    }

    /// Makes a model from an existing program. Creating a session verifies it.
    pub fn from_program(program: Program) -> Self {
        Self::of_program(program, ModelInfo::default(), false)
    }

    /// Reads an ONNX file whose initializers that are also inputs become inputs, so that each run may give them other values
    /// ([`Model::defaults`] are the file's). The model is not shared with other callers.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn load_overridable(path: impl AsRef<Path>) -> Result<Self> {
        Ok(Self::of_imported(import::open_all(path.as_ref(), Reading::default(), Defaults::Inputs)?))
    }

    /// Reads a model in memory as [`Model::load_overridable`] does.
    ///
    /// # Errors
    /// As [`Model::from_bytes`].
    pub fn from_bytes_overridable(bytes: impl Into<Bytes>) -> Result<Self> {
        Ok(Self::of_imported(import::all_from_bytes(bytes.into(), None, Defaults::Inputs)?))
    }

    fn of_imported(imported: Imported) -> Self {
        let Imported { program, info, defaults, values } = imported;
        let units = Mutex::default();
        let host = values.map(|graph| Arc::new(HostModel::new(graph)));
        let inner = Inner { program, info, defaults, is_verified: true, compiled: None, units, host };
        Self { inner: Arc::new(inner) }
    }

    fn of_program(program: Program, info: ModelInfo, is_verified: bool) -> Self {
        let (defaults, units) = (Vec::new(), Mutex::default());
        let inner = Inner { program, info, defaults, is_verified, compiled: None, units, host: None };
        Self { inner: Arc::new(inner) }
    }

    /// Makes a model of a verified segment of another one.
    pub(crate) fn of_segment(program: Program) -> Self {
        Self::of_program(program, ModelInfo::default(), true)
    }

    /// Returns the graph of a model that the host interprets, because it has strings, sequences, optionals or maps.
    pub(crate) fn host(&self) -> Option<&Arc<HostModel>> {
        self.inner.host.as_ref()
    }

    /// Returns whether the model has strings, sequences, optionals or maps, so that the host interprets its graph.
    pub fn has_values(&self) -> bool {
        self.inner.host.is_some()
    }

    fn of_compiled(mut compiled: Compiled) -> Self {
        let program = std::mem::take(&mut compiled.program);
        Self {
            inner: Arc::new(Inner {
                program,
                info: ModelInfo::of_compiled(&compiled.made_by),
                defaults: Vec::new(),
                is_verified: true,
                compiled: Some(compiled),
                units: Mutex::default(),
                host: None,
            }),
        }
    }

    /// Returns the input types that a compiled model was specialised for, in the order of its inputs; None for other models.
    pub fn compiled_for(&self) -> Option<Vec<Vec<TensorType>>> {
        let types_of = |plan: &Specialised| {
            let inputs = &plan.program.main.inputs;
            inputs.iter().filter_map(|&id| plan.program.value(id).ty.clone()).collect()
        };
        self.inner.compiled.as_ref().map(|compiled| compiled.plans.iter().map(types_of).collect())
    }

    /// Returns the facts that the model's file states about itself: producer, opsets, notes.
    pub fn info(&self) -> &ModelInfo {
        &self.inner.info
    }

    /// Returns the program as imported; for a compiled model, as left by the passes that need no types. For a model with
    /// strings, sequences, optionals or maps ([`Model::has_values`]), these are its segments side by side: the ops that
    /// devices run, but not what the model computes.
    pub fn program(&self) -> &Program {
        &self.inner.program
    }

    /// Returns the values of initializers that the file also lists as inputs, by name. They are constants of the program, or,
    /// of a model read by [`Model::load_overridable`], defaults of its inputs.
    pub fn defaults(&self) -> &[(String, Tensor)] {
        &self.inner.defaults
    }

    /// Returns the program as a device runs it, shared by all sessions of this model on that device.
    ///
    /// # Errors
    /// Errors of the passes.
    pub fn on_device(&self, device: &Arc<Device>) -> Result<Arc<Unit>> {
        self.placed(&Placement::on(device), PlanOptions::default())
    }

    /// Returns the program as [`Model::on_device`] does, for several devices, shared by sessions of equal placement and
    /// options.
    ///
    /// # Errors
    /// Errors of the passes; [`ErrorKind::InvalidArgument`] for a pin of a node that the program does not have.
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
        let unit = Arc::new(self.unit(placement, options)?);
        for (name, device) in &placement.pins {
            let checked = check_pin(&self.inner.program, unit.program(), name);
            checked.map_err(|error| error.on_device(device.name()))?;
        }
        units.push(Arc::downgrade(&unit));
        Ok(unit)
    }

    fn unit(&self, placement: &Placement, options: PlanOptions) -> Result<Unit> {
        let program = &self.inner.program;
        let Some(compiled) = &self.inner.compiled else {
            if !self.inner.is_verified {
                verify(program)?;
            }
            return Unit::of_model(program, Env::placed(placement, options));
        };
        let pins: Vec<(String, String)> =
            placement.pins.iter().map(|(node, device)| (node.clone(), device.name().to_owned())).collect();
        let plans = match compiled.is_for(&options.passes, &pins) {
            true => Arc::clone(&compiled.plans),
            false => Arc::default(),
        };
        let env = Env::with_packed(placement, options, &compiled.packed);
        Ok(Unit::of_compiled(program.clone(), compiled.passes.clone(), plans, env))
    }
}

fn folder_of(path: &Path) -> &Path {
    // A bare file name has the parent "".
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Refuses a pin that would have no effect.
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
