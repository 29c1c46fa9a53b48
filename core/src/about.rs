//! A plugin's description of itself, read once and owned.
//!
//! A plugin's `PluginInfo` is foreign memory: sizes and strides may lie, texts may be missing, lists may be
//! broken. Everything is checked here, once. A broken part becomes a [`Refusal`]; until then only the plugin's entry
//! was called.

pub(crate) use crate::kernel::text;
use crate::kernel::{KernelDef, KernelTable};
use devbay_plugin_api::abi::tables::{KERNEL_FLAGS, PLUGIN_FLAGS};
use devbay_plugin_api::abi::version::{MinorRange, Needed, missing_functions, not_understood};
use devbay_plugin_api::abi::{
    DEVBAY_PLUGIN_UNLOADABLE, DEVBAY_THREADING_FREE, DEVBAY_THREADING_PER_STREAM, KernelInfo, LayerFn,
    LayoutField, List, ListError, OptionInfo, PluginInfo, PluginTable, Str, read_growable_list, read_list,
    read_struct,
};
use std::fmt;

/// Why a plugin was not taken, to match on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum RefusalKind {
    /// The file does not exist or cannot be read.
    Unreadable,
    /// The file is no library for this machine, or a library that it needs is missing.
    NotALibrary,
    /// The library does not export the entry.
    NoEntry,
    /// The content differs from the manifest.
    WrongHash,
    /// The manifest is broken or does not fit the machine.
    BadManifest,
    /// A probe was wanted and not possible.
    NotProbed,
    /// The library ended the probing process, or did not answer in time.
    FailedProbe,
    /// No ABI version in common.
    NoCommonVersion,
    /// It must be understood as this host does not understand it.
    NotUnderstood,
    /// A struct or list of the plugin has a size that cannot be, or is NULL.
    BrokenLayout,
    /// A required function is missing.
    MissingFunction,
    /// The name breaks the rule for names.
    BadName,
    /// A plugin of that name is there already.
    DuplicateName,
    /// `create` failed.
    CreateFailed,
    /// `devices` failed, or said something impossible.
    DevicesFailed,
    /// An option was given that the plugin does not know.
    UnknownOption,
    /// A layer is in front of as many plugins as it can be.
    NoLayerSlot,
    /// A layer cannot stand in front of the plugin.
    LayerFailed,
    /// The library offers a layer and no plugin, or a plugin and no layer.
    OtherKind,
}

impl RefusalKind {
    /// Returns its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unreadable => "unreadable",
            Self::NotALibrary => "not-a-library",
            Self::NoEntry => "no-entry",
            Self::WrongHash => "wrong-hash",
            Self::BadManifest => "bad-manifest",
            Self::NotProbed => "not-probed",
            Self::FailedProbe => "failed-probe",
            Self::NoCommonVersion => "no-common-version",
            Self::NotUnderstood => "not-understood",
            Self::BrokenLayout => "broken-layout",
            Self::MissingFunction => "missing-function",
            Self::BadName => "bad-name",
            Self::DuplicateName => "duplicate-name",
            Self::CreateFailed => "create-failed",
            Self::DevicesFailed => "devices-failed",
            Self::UnknownOption => "unknown-option",
            Self::NoLayerSlot => "no-layer-slot",
            Self::LayerFailed => "layer-failed",
            Self::OtherKind => "other-kind",
        }
    }
}

/// Why a plugin was not taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The reason, to match on.
    pub kind: RefusalKind,
    /// The reason in words: expected, found, and the next thing to try.
    pub reason: String,
    /// Further details: the layout's differences, field by field.
    pub details: Vec<String>,
}

impl Refusal {
    /// Creates a refusal without details.
    pub fn new(kind: RefusalKind, reason: impl Into<String>) -> Self {
        Self { kind, reason: reason.into(), details: Vec::new() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.reason)
    }
}

impl std::error::Error for Refusal {}

impl From<ListError> for Refusal {
    fn from(error: ListError) -> Self {
        Self::new(RefusalKind::BrokenLayout, format!("the plugin's data is broken: {error}"))
    }
}

/// The calls that the host must serialise (B17).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Threading {
    /// None.
    Free,
    /// Calls on one stream.
    PerStream,
    /// Every call.
    Serialised,
}

impl Threading {
    /// Returns its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::PerStream => "per-stream",
            Self::Serialised => "serialised",
        }
    }
}

/// An option that a plugin takes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OptionDef {
    /// Name, without the plugin's.
    pub key: String,
    /// Value when it is not given.
    pub default: String,
    /// One line for a person.
    pub doc: String,
}

/// One field of the plugin's view of the header (B30).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FieldSeen {
    /// Struct, by its name in C.
    pub struct_name: String,
    /// Field; empty for the struct as a whole.
    pub field_name: String,
    /// Offset in bytes.
    pub offset: u32,
    /// Size in bytes.
    pub size: u32,
}

/// A plugin's description of itself.
#[derive(Clone)]
pub struct About {
    /// Short name.
    pub name: String,
    /// The plugin's maker.
    pub vendor: String,
    /// Its own version.
    pub version: String,
    /// Minors that it speaks.
    pub minors: MinorRange,
    /// The calls that must be serialised.
    pub threading: Threading,
    /// True if the library may be unloaded (B26).
    pub unloadable: bool,
    /// Conformance profiles that it claims.
    pub profiles: Vec<String>,
    /// Options of `create`.
    pub options: Vec<OptionDef>,
    /// Kernels.
    pub kernels: KernelTable,
    /// Kernels that this host leaves out, with the reason.
    pub left_out: Vec<String>,
    /// Functions; those it lacks are None.
    pub table: PluginTable,
    /// Its view of the header's structs; empty if it does not show it.
    pub layout: Vec<FieldSeen>,
}

/// The head of a `PluginInfo`, which every version has in the same place: enough to say why the rest cannot
/// be used.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// The size that it says.
    pub struct_size: u32,
    /// Minors that it speaks.
    pub minors: MinorRange,
}

/// Reads the part of a plugin's data that never moves.
///
/// # Safety
/// `info` is NULL or comes from a plugin's entry.
///
/// # Errors
/// A refusal for NULL, and for a size that does not even hold this part.
pub unsafe fn read_head(info: *const PluginInfo) -> Result<Head, Refusal> {
    if info.is_null() {
        return Err(Refusal::new(RefusalKind::BrokenLayout, "the plugin's entry returned NULL"));
    }
    let word = |i: usize| {
        // SAFETY: `info` is what the entry returned (# Safety) and not NULL; its first three words stay in place in
        // every version.
        unsafe { info.cast::<u32>().add(i).read_unaligned() }
    };
    let head = Head { struct_size: word(0), minors: MinorRange { min: word(1), max: word(2) } };
    if head.struct_size < 12 {
        return Err(Refusal::new(
            RefusalKind::BrokenLayout,
            format!("the plugin's data says a size of {} bytes", head.struct_size),
        ));
    }
    Ok(head)
}

/// Reads and checks all that a plugin says (B4, B5, B7, B20).
///
/// # Safety
/// `info` is NULL or comes from a plugin's entry: static data of a version that the host speaks.
///
/// # Errors
/// A refusal that names the fault.
pub unsafe fn read(info: *const PluginInfo) -> Result<About, Refusal> {
    // SAFETY: `info` is NULL or what the entry returned (# Safety).
    let head = unsafe { read_head(info) }?;
    // SAFETY: `info` is static data of a version that the host speaks (# Safety).
    let info = unsafe { read_struct(info) }?;
    // SAFETY: static data of the plugin's (# Safety).
    let name = unsafe { text(&info.name) }?;
    if !valid_name(&name) {
        return Err(Refusal::new(
            RefusalKind::BadName,
            format!("the plugin calls itself `{name}`, expected a name of [a-z][a-z0-9_-]*"),
        ));
    }
    if info.table.is_null() && info.layer.is_some() {
        let reason = format!("{name} is a layer and no plugin; --layers takes its library");
        return Err(Refusal::new(RefusalKind::OtherKind, reason));
    }
    // SAFETY: the table is NULL or static data of the plugin's (# Safety).
    let table = unsafe { read_table(info.table) }?;
    let unknown = not_understood(info.flags, PLUGIN_FLAGS);
    if unknown != 0 {
        let reason = format!("the plugin {}; update devbay", must_understand(unknown));
        return Err(Refusal::new(RefusalKind::NotUnderstood, reason));
    }
    // SAFETY: the list is static data of the plugin's (# Safety).
    let (kernels, left_out) = unsafe { read_kernels(&info.kernels) }?;
    let mut needed = vec![Needed::Always];
    if info.kernels.len > 0 {
        needed.push(Needed::WithKernels);
    }
    refuse_missing(&table, &needed)?;
    Ok(About {
        name,
        // SAFETY: static data (# Safety).
        vendor: unsafe { text(&info.vendor) }?,
        // SAFETY: static data (# Safety).
        version: unsafe { text(&info.version) }?,
        minors: head.minors,
        threading: match info.threading {
            DEVBAY_THREADING_FREE => Threading::Free,
            DEVBAY_THREADING_PER_STREAM => Threading::PerStream,
            // SERIALISED, and an unknown class is served as the strictest known one (B5).
            _ => Threading::Serialised,
        },
        unloadable: info.flags & DEVBAY_PLUGIN_UNLOADABLE != 0,
        // SAFETY: static data (# Safety).
        profiles: unsafe { read_list::<Str>(&info.profiles, "Str") }?
            .iter()
            // SAFETY: static data (# Safety).
            .map(|profile| unsafe { text(profile) })
            .collect::<Result<_, _>>()?,
        // SAFETY: static data (# Safety).
        options: unsafe { read_growable_list::<OptionInfo>(&info.options) }?
            .iter()
            // SAFETY: the option's texts are static data (# Safety).
            .map(|option| unsafe { read_option(option) })
            .collect::<Result<_, _>>()?,
        kernels,
        left_out,
        table,
        // SAFETY: the list is static data (# Safety).
        layout: unsafe { read_fields(&info.layout) },
    })
}

/// Reads the data of a library that offers a layer: the layer's name, and its function.
///
/// # Safety
/// As for [`read`].
///
/// # Errors
/// A refusal that names the fault, also for a library without a layer.
pub unsafe fn read_layer(info: *const PluginInfo) -> Result<(String, LayerFn), Refusal> {
    // SAFETY: `info` is static data of a version that the host speaks (# Safety).
    let info = unsafe { read_struct(info) }?;
    // SAFETY: static data of the plugin's (# Safety).
    let name = unsafe { text(&info.name) }?;
    if !valid_name(&name) {
        let reason = format!("the layer calls itself `{name}`, expected a name of [a-z][a-z0-9_-]*");
        return Err(Refusal::new(RefusalKind::BadName, reason));
    }
    let unknown = not_understood(info.flags, PLUGIN_FLAGS);
    if unknown != 0 {
        let reason = format!("the layer {}; update devbay", must_understand(unknown));
        return Err(Refusal::new(RefusalKind::NotUnderstood, reason));
    }
    match info.layer {
        Some(layer) => Ok((name, layer)),
        None => Err(Refusal::new(RefusalKind::OtherKind, format!("{name} offers no layer"))),
    }
}

/// Refuses a plugin that lacks a function that it needs (B7).
///
/// # Errors
/// A refusal that names the functions.
pub fn refuse_missing(table: &PluginTable, needed: &[Needed]) -> Result<(), Refusal> {
    let missing = missing_functions(table, needed);
    if missing.is_empty() {
        return Ok(());
    }
    Err(Refusal::new(
        RefusalKind::MissingFunction,
        format!("required functions are missing: {}", missing.join(", ")),
    ))
}

/// Names are `[a-z][a-z0-9_-]*` and short, because devices are called NAME:INDEX.
pub fn valid_name(name: &str) -> bool {
    name.len() <= 64
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '-')
}

/// A table whose size is too small for a required function lacks that function, which is said by name.
///
/// # Safety
/// `table` is NULL or a plugin's table.
unsafe fn read_table(table: *const PluginTable) -> Result<PluginTable, Refusal> {
    // SAFETY: `table` is NULL or a plugin's table (# Safety).
    match unsafe { read_struct(table) } {
        Ok(table) => Ok(table),
        Err(ListError::StructSize { name, found, required }) if found >= 8 && found < required => {
            let missing: Vec<_> = devbay_plugin_api::abi::REQUIRED_FUNCTIONS
                .iter()
                .enumerate()
                .filter(|(i, _)| 8 + (i + 1) * size_of::<usize>() > found)
                .map(|(_, (function, _))| *function)
                .collect();
            Err(Refusal::new(
                RefusalKind::MissingFunction,
                format!("{name} says a size of {found} bytes, so it has no room for: {}", missing.join(", ")),
            ))
        }
        Err(error) => Err(error.into()),
    }
}

/// # Safety
/// The option's texts are static data of the plugin's.
unsafe fn read_option(option: &OptionInfo) -> Result<OptionDef, ListError> {
    Ok(OptionDef {
        // SAFETY: the option's texts are static data (# Safety).
        key: unsafe { text(&option.key) }?,
        // SAFETY: static data (# Safety).
        default: unsafe { text(&option.default_value) }?,
        // SAFETY: static data (# Safety).
        doc: unsafe { text(&option.doc) }?,
    })
}

/// Describes flags that must be understood and are not.
pub(crate) fn must_understand(unknown: u64) -> String {
    format!("has flags that must be understood and are not known here: {unknown:#x}")
}

/// Returns the kernels that this host understands, and a line for each of the others.
///
/// # Safety
/// The list is static data of the plugin's.
unsafe fn read_kernels(list: &List) -> Result<(KernelTable, Vec<String>), Refusal> {
    // SAFETY: the list is static data (# Safety).
    let infos = unsafe { read_growable_list::<KernelInfo>(list) }?;
    let mut kernels = Vec::with_capacity(infos.len());
    let mut left_out = Vec::new();
    for (idx, info) in infos.iter().enumerate() {
        // SAFETY: `info` is a copy of an element of the list, whose own lists are static data (# Safety).
        match unsafe { read_kernel(idx as u32, info) }? {
            Ok(kernel) => kernels.push(kernel),
            Err(line) => left_out.push(line),
        }
    }
    Ok((KernelTable::new(kernels), left_out))
}

/// A kernel, or a line that says why it is left out.
///
/// # Errors
/// A refusal for a descriptor that cannot be read.
///
/// # Safety
/// `info` was read from a plugin's data, which lives as long as the plugin.
pub unsafe fn read_kernel(
    idx: u32,
    info: &KernelInfo,
) -> Result<std::result::Result<KernelDef, String>, Refusal> {
    // SAFETY: `info` was read from a plugin's data, which lives as long as the plugin (# Safety).
    let kernel = unsafe { KernelDef::read(idx, info) }.map_err(|e| {
        Refusal::new(RefusalKind::BrokenLayout, format!("kernel {idx} of the plugin is broken: {e}"))
    })?;
    Ok(match not_understood(info.flags, KERNEL_FLAGS) {
        0 => Ok(kernel),
        unknown => Err(format!("kernel {idx} ({}) {}", kernel.op, must_understand(unknown))),
    })
}

/// Reads a plugin's view of the header's structs, also of one whose other data is broken; empty if it does not
/// show it.
///
/// # Safety
/// As for [`read`].
pub unsafe fn read_layout(info: *const PluginInfo) -> Vec<FieldSeen> {
    // SAFETY: `info` is NULL or what the entry returned (# Safety).
    match unsafe { read_struct(info) } {
        // SAFETY: the list is static data of the plugin's (# Safety).
        Ok(info) => unsafe { read_fields(&info.layout) },
        Err(_) => Vec::new(),
    }
}

/// A broken table of layouts is no reason to refuse a plugin: it only explains (B30), and counts as empty.
///
/// # Safety
/// The list is static data of the plugin's.
unsafe fn read_fields(list: &List) -> Vec<FieldSeen> {
    // SAFETY: the list is static data (# Safety).
    let Ok(fields) = (unsafe { read_list::<LayoutField>(list, "LayoutField") }) else {
        return Vec::new();
    };
    let fields: Result<Vec<FieldSeen>, ListError> = fields
        .iter()
        .map(|field| {
            Ok(FieldSeen {
                // SAFETY: the field's texts are static data (# Safety).
                struct_name: unsafe { text(&field.struct_name) }?,
                // SAFETY: static data (# Safety).
                field_name: unsafe { text(&field.field_name) }?,
                offset: field.offset,
                size: field.size,
            })
        })
        .collect();
    fields.unwrap_or_default()
}
