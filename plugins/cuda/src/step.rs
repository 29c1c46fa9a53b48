//! One dispatch as a kernel describes it, and its text in WGSL.
//!
//! The wgpu plugin's `dispatch.rs` has the same, until what the GPU plugins share has a crate of its own.

use devbay_plugin_api::sdk::{Error, Result};
use std::ops::Range;

/// Threads of a workgroup that runs over items.
pub const GROUP: u32 = 256;

/// What a buffer of a shader is bound to.
#[derive(Clone, Debug)]
pub enum Slot {
    /// An input, whole.
    Input(usize),
    /// An output, whole.
    Output(usize),
    /// A part of the workspace.
    Scratch(Range<u64>),
}

/// A parameter of a shader: a field of its uniform struct `p`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Param {
    /// `u32`.
    U32(u32),
    /// `i32`.
    I32(i32),
    /// `f32`.
    F32(f32),
}

impl Param {
    /// Its WGSL type.
    fn type_name(self) -> &'static str {
        match self {
            Self::U32(_) => "u32",
            Self::I32(_) => "i32",
            Self::F32(_) => "f32",
        }
    }

    /// Its bytes in the struct.
    pub fn bytes(self) -> [u8; 4] {
        match self {
            Self::U32(value) => value.to_le_bytes(),
            Self::I32(value) => value.to_le_bytes(),
            Self::F32(value) => value.to_le_bytes(),
        }
    }
}

/// One dispatch, as a kernel describes it.
///
/// `code` is WGSL. Buffers are declared from `buffers` as `var<storage, read_write> NAME: array<TYPE>`, parameters as
/// the fields of a uniform `p`, in order.
pub struct Step<'a> {
    /// A name for errors and debuggers.
    pub name: &'a str,
    /// Name, element type and slot of each buffer.
    pub buffers: Vec<(&'a str, &'a str, Slot)>,
    /// Name and value of each parameter.
    pub params: Vec<(String, Param)>,
    /// What runs.
    pub body: Body<'a>,
}

/// The code of a step, and over what it runs.
pub enum Body<'a> {
    /// Functions, and statements that are run for every `i` below `n`.
    Items {
        /// Items.
        n: u64,
        /// WGSL at module scope.
        functions: &'a str,
        /// WGSL statements over `i: u32`.
        each: &'a str,
    },
    /// A module with an entry `main` of its own.
    Groups {
        /// Workgroups along each axis.
        groups: [u32; 3],
        /// WGSL.
        module: &'a str,
    },
}

/// A step as text.
pub struct Text {
    /// The whole module, with an entry `main`: parameters at binding 0 if there are any, then the buffers.
    pub wgsl: String,
    /// Its parameters, with those that were added.
    pub params: Vec<(String, Param)>,
    /// Workgroups along each axis.
    pub groups: [u32; 3],
}

impl Step<'_> {
    /// The step's text, on a device of that many workgroups along an axis; None if there is nothing to do.
    ///
    /// # Errors
    /// Unsupported for more items than 32 bits count.
    pub fn text(self, groups_max: u32) -> Result<Option<Text>> {
        let mut text = String::new();
        let mut params = self.params;
        if let Body::Items { n, .. } = self.body {
            let n = u32::try_from(n)
                .map_err(|_| Error::unsupported(format!("{n} items of a dispatch, more than 2^32")))?;
            if n == 0 {
                return Ok(None);
            }
            params.insert(0, ("n_items".to_owned(), Param::U32(n)));
        }
        if !params.is_empty() {
            text.push_str("struct Params {\n");
            for (name, value) in &params {
                text.push_str(&format!("  {name}: {},\n", value.type_name()));
            }
            text.push_str("}\n@group(0) @binding(0) var<uniform> p: Params;\n");
        }
        for (i, (name, element, _)) in self.buffers.iter().enumerate() {
            let binding = i + 1;
            text.push_str(&format!(
                "@group(0) @binding({binding}) var<storage, read_write> {name}: array<{element}>;\n"
            ));
        }
        let groups = match self.body {
            Body::Groups { groups, module } => {
                text.push_str(module);
                groups
            }
            Body::Items { n, functions, each } => {
                text.push_str(functions);
                text.push_str(&format!(
                    "\n@compute @workgroup_size({GROUP})\n\
                     fn main(@builtin(global_invocation_id) id: vec3<u32>, \
                     @builtin(num_workgroups) groups: vec3<u32>) {{\n\
                     let i = id.y * (groups.x * {GROUP}u) + id.x;\n\
                     if (i >= p.n_items) {{ return; }}\n{each}\n}}\n"
                ));
                let n_groups = (n as u32).div_ceil(GROUP);
                let width = n_groups.min(groups_max);
                [width, n_groups.div_ceil(width), 1]
            }
        };
        if text.contains("f16") {
            text.insert_str(0, "enable f16;\n");
        }
        Ok(Some(Text { wgsl: text, params, groups }))
    }
}
