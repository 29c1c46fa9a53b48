//! From WGSL to CUDA C: the kernels that every GPU plugin can run are WGSL, and this makes text of it that NVRTC
//! compiles.
//!
//! naga reads and checks the WGSL; what is written follows its intermediate form, one C expression for each of naga's,
//! each in a variable of its own where naga says that it is evaluated. The compiler folds them. What C does otherwise
//! (integers that overflow, division by zero, wide shifts, conversions out of range) goes through functions of the
//! prelude, which has WGSL's meaning.
//!
//! - `types`: names and layouts; - `expression`: values and places; - `statement`: functions and control flow.
//!
//! Two things are left to the kernels: indices are not checked against the ends of buffers, and workgroup memory is not
//! cleared before a kernel begins. Of subgroups there are their numbers and
//! `subgroupShuffleXor`, in workgroups of whole warps. Textures, matrices and overrides are refused by name.

mod expression;
mod statement;
mod types;

pub use statement::WARP;

use devbay_plugin_api::sdk::{Error, Result};
use naga::valid::{
    Capabilities, FunctionInfo, ModuleInfo, ShaderStages, SubgroupOperationSet, ValidationFlags, Validator,
};
use naga::{AddressSpace, Handle, Module};
use std::collections::HashMap;

/// Code for what WGSL has and C has not: every text begins with it.
pub const PRELUDE: &str = include_str!("prelude.cuh");

/// One parameter of a kernel, in their order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Param {
    /// A uniform struct, by value, and its size in bytes.
    Uniform(u32),
    /// The address of a storage buffer, by its binding.
    Storage(u32),
    /// The number of elements of a storage buffer, by its binding, with the bytes of an element: a `u32`.
    Length(u32, u32),
}

/// A kernel in CUDA C.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Source {
    /// The text, which includes nothing.
    pub text: String,
    /// The kernel's name in it.
    pub entry: String,
    /// Its parameters.
    pub params: Vec<Param>,
    /// Threads of a block.
    pub block: [u32; 3],
}

/// The kernel of a WGSL text that has one compute entry; `name` becomes part of its name.
///
/// # Errors
/// Internal with naga's words for a text that is not valid; unsupported with the construct that this cannot write.
pub fn from_wgsl(name: &str, wgsl: &str) -> Result<Source> {
    let broken = |words: String| Error::internal(format!("shader {name}: {words}"));
    let module = naga::front::wgsl::parse_str(wgsl).map_err(|e| broken(e.emit_to_string(wgsl)))?;
    let abilities = Capabilities::SHADER_INT64
        | Capabilities::SHADER_FLOAT16
        | Capabilities::SHADER_FLOAT16_IN_FLOAT32
        | Capabilities::SUBGROUP;
    let mut validator = Validator::new(ValidationFlags::all(), abilities);
    validator
        .subgroup_stages(ShaderStages::COMPUTE)
        .subgroup_operations(SubgroupOperationSet::SHUFFLE_RELATIVE | SubgroupOperationSet::SHUFFLE);
    let info = validator.validate(&module);
    let info = info.map_err(|e| broken(e.emit_to_string(wgsl)))?;
    from_module(name, &module, &info)
        .map_err(|e| Error::new(e.status(), format!("shader {name}: {}", e.text())))
}

/// As [`from_wgsl`], from naga's form.
///
/// # Errors
/// Unsupported with the construct that this cannot write.
pub fn from_module(name: &str, module: &Module, info: &ModuleInfo) -> Result<Source> {
    let [entry] = &module.entry_points[..] else {
        return Err(unsupported(format!("a module of {} entries", module.entry_points.len())));
    };
    if entry.stage != naga::ShaderStage::Compute || entry.workgroup_size_overrides.is_some() {
        return Err(unsupported("an entry that is not a compute shader of a fixed size"));
    }
    if !module.overrides.is_empty() {
        return Err(unsupported("an override"));
    }
    let mut writer = Writer { module, info, out: PRELUDE.to_owned(), indent: 0 };
    writer.structs()?;
    writer.constants()?;
    writer.shared_memory()?;
    for (handle, function) in module.functions.iter() {
        writer.function(handle, function)?;
    }
    let name = format!("k_{}", identifier(name));
    let params = writer.entry(&name, entry)?;
    Ok(Source { text: writer.out, entry: name, params, block: entry.workgroup_size })
}

/// Makes the error for a construct that is not covered.
fn unsupported(what: impl std::fmt::Display) -> Error {
    Error::unsupported(format!("{what}, which is not written as CUDA C"))
}

/// A name as C takes it; what makes it unique stands in front.
fn identifier(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

/// A name from a letter, a number that no other of the letter has, and the name in WGSL.
fn numbered(letter: char, index: usize, name: Option<&str>) -> String {
    match name {
        Some(name) => format!("{letter}{index}_{}", identifier(name)),
        None => format!("{letter}{index}"),
    }
}

/// The text in the making.
struct Writer<'a> {
    module: &'a Module,
    info: &'a ModuleInfo,
    out: String,
    indent: usize,
}

/// The function that is being written.
struct Scope<'a> {
    function: &'a naga::Function,
    info: &'a FunctionInfo,
    /// Expressions that have a variable.
    named: HashMap<Handle<naga::Expression>, String>,
    /// Where `continue` jumps to, for each loop around.
    loops: Vec<Option<String>>,
    n_labels: usize,
}

impl Writer<'_> {
    fn line(&mut self, text: &str) {
        for _ in 0..self.indent {
            self.out.push_str("  ");
        }
        self.out.push_str(text);
        self.out.push('\n');
    }

    fn global_name(&self, handle: Handle<naga::GlobalVariable>) -> String {
        numbered('g', handle.index(), self.module.global_variables[handle].name.as_deref())
    }

    fn length_name(&self, handle: Handle<naga::GlobalVariable>) -> String {
        format!("n{}", handle.index())
    }

    /// Module-scope memory of the block.
    fn shared_memory(&mut self) -> Result<()> {
        for (handle, global) in self.module.global_variables.iter() {
            if global.space == AddressSpace::WorkGroup {
                let ty = self.type_name(global.ty)?;
                let name = self.global_name(handle);
                self.line(&format!("__shared__ {ty} {name};"));
            }
        }
        Ok(())
    }

    /// Module-scope constants that are indexed: the others stand where they are used.
    fn constants(&mut self) -> Result<()> {
        for (handle, constant) in self.module.constants.iter() {
            if matches!(self.module.types[constant.ty].inner, naga::TypeInner::Array { .. }) {
                let ty = self.type_name(constant.ty)?;
                let value = self.constant_value(constant.init)?;
                self.line(&format!("__device__ const {ty} c{} = {value};", handle.index()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
