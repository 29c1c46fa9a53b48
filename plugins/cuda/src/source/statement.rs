//! Functions and control flow.

use super::types::scalar_name;
use super::{Param, Scope, Writer, numbered, unsupported};
use devbay_plugin_api::sdk::Result;
use naga::valid::{FunctionInfo, GlobalUse};
use naga::{
    AddressSpace, AtomicFunction, Barrier, Binding, Block, BuiltIn, EntryPoint, Expression, Function,
    GatherMode, Handle, Statement, SwitchValue, TypeInner,
};
use std::collections::HashMap;

impl Writer<'_> {
    fn scope<'b>(function: &'b Function, info: &'b FunctionInfo) -> Scope<'b> {
        Scope { function, info, named: HashMap::new(), loops: Vec::new(), n_labels: 0 }
    }

    /// A function; the module's variables that it uses come after its own arguments.
    pub(super) fn function(&mut self, handle: Handle<Function>, function: &Function) -> Result<()> {
        let info = &self.info[handle];
        let mut parameters = Vec::new();
        for (i, argument) in function.arguments.iter().enumerate() {
            let name = numbered('a', i, argument.name.as_deref());
            parameters.push(format!("{} {name}", self.type_name(argument.ty)?));
        }
        for (global, variable) in self.module.global_variables.iter() {
            let name = self.global_name(global);
            if info[global].is_empty() {
                continue;
            }
            match variable.space {
                AddressSpace::Uniform => {
                    parameters.push(format!("const {}& {name}", self.type_name(variable.ty)?));
                }
                AddressSpace::Private => parameters.push(format!("{}& {name}", self.type_name(variable.ty)?)),
                AddressSpace::Storage { .. } => {
                    parameters.push(format!("{}* {name}", self.pointed_to(variable.ty)?));
                    if info[global].contains(GlobalUse::QUERY) {
                        parameters.push(format!("u32 {}", self.length_name(global)));
                    }
                }
                AddressSpace::WorkGroup => {}
                other => return Err(unsupported(format!("a variable in {other:?}"))),
            }
        }
        let result = match &function.result {
            Some(result) => self.type_name(result.ty)?,
            None => "void".to_owned(),
        };
        let name = numbered('f', handle.index(), function.name.as_deref());
        self.line(&format!("W {result} {name}({}) {{", parameters.join(", ")));
        self.indent += 1;
        let mut scope = Self::scope(function, info);
        self.body(&mut scope)?;
        self.indent -= 1;
        self.line("}");
        Ok(())
    }

    /// Returns the type that a buffer's address points to.
    fn pointed_to(&self, ty: Handle<naga::Type>) -> Result<String> {
        self.type_name(self.element(ty).map_or(ty, |(element, _)| element))
    }

    /// The kernel; its parameters are the module's buffers, in the order of their bindings.
    pub(super) fn entry(&mut self, name: &str, entry: &EntryPoint) -> Result<Vec<Param>> {
        let info = self.info.get_entry_point(0);
        let mut resources = Vec::new();
        for (global, variable) in self.module.global_variables.iter() {
            match (&variable.binding, variable.space) {
                (Some(binding), AddressSpace::Uniform | AddressSpace::Storage { .. }) => {
                    resources.push((binding.group, binding.binding, global));
                }
                (None, AddressSpace::Private | AddressSpace::WorkGroup) => {}
                (_, space) => return Err(unsupported(format!("a variable in {space:?}"))),
            }
        }
        resources.sort_by_key(|&(group, binding, _)| (group, binding));
        let (mut params, mut texts) = (Vec::new(), Vec::new());
        for (group, binding, global) in resources {
            if group != 0 {
                return Err(unsupported(format!("a buffer of group {group}")));
            }
            let (ty, name) = (self.module.global_variables[global].ty, self.global_name(global));
            if self.module.global_variables[global].space == AddressSpace::Uniform {
                let size = self.module.types[ty].inner.size(self.module.to_ctx());
                params.push(Param::Uniform(size));
                texts.push(format!("const __grid_constant__ {} {name}", self.type_name(ty)?));
                continue;
            }
            params.push(Param::Storage(binding));
            texts.push(format!("{}* {name}", self.pointed_to(ty)?));
            if info[global].contains(GlobalUse::QUERY) {
                let (_, stride) = self.element(ty).ok_or_else(|| unsupported("the length of a struct"))?;
                params.push(Param::Length(binding, stride));
                texts.push(format!("u32 {}", self.length_name(global)));
            }
        }
        let [x, y, z] = entry.workgroup_size;
        let n_threads = x * y * z;
        self.line(&format!(
            "extern \"C\" __global__ void __launch_bounds__({n_threads}) {name}({}) {{",
            texts.join(", ")
        ));
        self.indent += 1;
        for (i, argument) in entry.function.arguments.iter().enumerate() {
            let ty = self.type_name(argument.ty)?;
            let value = match (&argument.binding, &self.module.types[argument.ty].inner) {
                (Some(Binding::BuiltIn(builtin)), _) => built_in(*builtin, entry.workgroup_size)?,
                (None, TypeInner::Struct { members, .. }) => {
                    let mut parts = Vec::new();
                    for member in members {
                        match member.binding {
                            Some(Binding::BuiltIn(builtin)) => {
                                parts.push(built_in(builtin, entry.workgroup_size)?);
                            }
                            _ => return Err(unsupported("an entry's argument that is not built in")),
                        }
                    }
                    format!("{ty}{{{}}}", parts.join(", "))
                }
                _ => return Err(unsupported("an entry's argument that is not built in")),
            };
            let name = numbered('a', i, argument.name.as_deref());
            self.line(&format!("const {ty} {name} = {value};"));
        }
        for (global, variable) in self.module.global_variables.iter() {
            if variable.space == AddressSpace::Private {
                let (ty, name) = (self.type_name(variable.ty)?, self.global_name(global));
                let value = match variable.init {
                    Some(init) => self.constant_value(init)?,
                    None => format!("{ty}{{}}"),
                };
                self.line(&format!("{ty} {name} = {value};"));
            }
        }
        let mut scope = Self::scope(&entry.function, info);
        self.body(&mut scope)?;
        self.indent -= 1;
        self.line("}");
        Ok(params)
    }

    fn body(&mut self, scope: &mut Scope<'_>) -> Result<()> {
        let function = scope.function;
        for (handle, local) in function.local_variables.iter() {
            let name = numbered('v', handle.index(), local.name.as_deref());
            let ty = self.type_name(local.ty)?;
            let value = match local.init {
                Some(init) => self.value(scope, init)?,
                None => format!("{ty}{{}}"),
            };
            self.line(&format!("{ty} {name} = {value};"));
        }
        self.block(scope, &function.body)
    }

    fn block(&mut self, scope: &mut Scope<'_>, block: &Block) -> Result<()> {
        block.iter().try_for_each(|statement| self.statement(scope, statement))
    }

    fn nested(&mut self, scope: &mut Scope<'_>, block: &Block) -> Result<()> {
        self.indent += 1;
        self.block(scope, block)?;
        self.indent -= 1;
        Ok(())
    }

    /// Gives an expression its variable.
    fn name(&mut self, scope: &mut Scope<'_>, handle: Handle<Expression>, value: &str) -> Result<()> {
        let ty = self.type_of(scope, handle)?;
        let name =
            numbered('e', handle.index(), scope.function.named_expressions.get(&handle).map(|n| &n[..]));
        self.line(&format!("const {ty} {name} = {value};"));
        scope.named.insert(handle, name);
        Ok(())
    }

    fn statement(&mut self, scope: &mut Scope<'_>, statement: &Statement) -> Result<()> {
        match *statement {
            Statement::Emit(ref range) => {
                for handle in range.clone() {
                    let inner = self.inner(scope, handle);
                    if !matches!(inner, TypeInner::Pointer { .. } | TypeInner::ValuePointer { .. }) {
                        let value = self.value(scope, handle)?;
                        self.name(scope, handle, &value)?;
                    }
                }
            }
            Statement::Block(ref block) => {
                self.line("{");
                self.nested(scope, block)?;
                self.line("}");
            }
            Statement::If { condition, ref accept, ref reject } => {
                let condition = self.value(scope, condition)?;
                self.line(&format!("if ({condition}) {{"));
                self.nested(scope, accept)?;
                if !reject.is_empty() {
                    self.line("} else {");
                    self.nested(scope, reject)?;
                }
                self.line("}");
            }
            Statement::Switch { selector, ref cases } => {
                let selector = self.value(scope, selector)?;
                self.line(&format!("switch ({selector}) {{"));
                for case in cases {
                    let label = match case.value {
                        SwitchValue::I32(i32::MIN) => "case (-2147483647 - 1)".to_owned(),
                        SwitchValue::I32(value) => format!("case {value}"),
                        SwitchValue::U32(value) => format!("case {value}u"),
                        SwitchValue::Default => "default".to_owned(),
                    };
                    self.line(&format!("{label}: {{"));
                    self.nested(scope, &case.body)?;
                    self.line(if case.fall_through { "}" } else { "} break;" });
                }
                self.line("}");
            }
            Statement::Loop { ref body, ref continuing, break_if } => {
                self.repeat(scope, body, continuing, break_if)?;
            }
            Statement::Break => self.line("break;"),
            Statement::Continue => match scope.loops.last().cloned().flatten() {
                Some(label) => self.line(&format!("goto {label};")),
                None => self.line("continue;"),
            },
            Statement::Return { value: None } => self.line("return;"),
            Statement::Return { value: Some(value) } => {
                let value = self.value(scope, value)?;
                self.line(&format!("return {value};"));
            }
            Statement::ControlBarrier(barrier) if barrier == Barrier::SUB_GROUP => self.line("__syncwarp();"),
            // Orders the memory of the block, shared and global, among its threads.
            Statement::ControlBarrier(_) => self.line("__syncthreads();"),
            Statement::MemoryBarrier(_) => self.line("__threadfence();"),
            Statement::Store { pointer, value } => {
                let (place, value) = (self.place(scope, pointer)?, self.value(scope, value)?);
                match self.pointee(scope, pointer) {
                    Some(TypeInner::Atomic(scalar)) => {
                        self.line(&format!("*(volatile {}*)&{place} = {value};", scalar_name(scalar)?));
                    }
                    _ => self.line(&format!("{place} = {value};")),
                }
            }
            Statement::Atomic { pointer, ref fun, value, result } => {
                self.atomic(scope, pointer, fun, value, result)?;
            }
            Statement::WorkGroupUniformLoad { pointer, result } => {
                let place = self.place(scope, pointer)?;
                self.line("__syncthreads();");
                self.name(scope, result, &place)?;
                self.line("__syncthreads();");
            }
            Statement::SubgroupGather { mode: GatherMode::ShuffleXor(mask), argument, result } => {
                let (value, mask) = (self.value(scope, argument)?, self.value(scope, mask)?);
                self.name(scope, result, &format!("w_shuffle_xor({value}, {mask})"))?;
            }
            Statement::Call { function, ref arguments, result } => {
                let call = self.call(scope, function, arguments)?;
                match result {
                    Some(result) => self.name(scope, result, &call)?,
                    None => self.line(&format!("{call};")),
                }
            }
            ref other => {
                let text = format!("{other:?}");
                let kind = text.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default();
                return Err(unsupported(format!("the statement {kind}")));
            }
        }
        Ok(())
    }

    /// A loop: `continuing` runs after the body, also after a `continue` in it.
    fn repeat(
        &mut self,
        scope: &mut Scope<'_>,
        body: &Block,
        continuing: &Block,
        break_if: Option<Handle<Expression>>,
    ) -> Result<()> {
        let is_plain = continuing.is_empty() && break_if.is_none();
        self.line("for (;;) {");
        if is_plain {
            scope.loops.push(None);
            self.nested(scope, body)?;
        } else if continues(body) {
            let label = format!("continue{}", scope.n_labels);
            scope.n_labels += 1;
            scope.loops.push(Some(label.clone()));
            self.indent += 1;
            // A block of its own: a jump may leave the scope of variables, not enter it.
            self.line("{");
            self.nested(scope, body)?;
            self.line(&format!("}} {label}:;"));
            self.indent -= 1;
        } else {
            scope.loops.push(None);
            self.nested(scope, body)?;
        }
        scope.loops.pop();
        self.nested(scope, continuing)?;
        if let Some(condition) = break_if {
            let condition = self.value(scope, condition)?;
            self.line(&format!("  if ({condition}) break;"));
        }
        self.line("}");
        Ok(())
    }

    fn call(
        &self,
        scope: &Scope<'_>,
        function: Handle<Function>,
        arguments: &[Handle<Expression>],
    ) -> Result<String> {
        let mut texts = Vec::new();
        for &argument in arguments {
            texts.push(self.value(scope, argument)?);
        }
        let info = &self.info[function];
        for (global, variable) in self.module.global_variables.iter() {
            if info[global].is_empty() || variable.space == AddressSpace::WorkGroup {
                continue;
            }
            texts.push(self.global_name(global));
            if info[global].contains(GlobalUse::QUERY) {
                texts.push(self.length_name(global));
            }
        }
        let name = numbered('f', function.index(), self.module.functions[function].name.as_deref());
        Ok(format!("{name}({})", texts.join(", ")))
    }

    fn atomic(
        &mut self,
        scope: &mut Scope<'_>,
        pointer: Handle<Expression>,
        fun: &AtomicFunction,
        value: Handle<Expression>,
        result: Option<Handle<Expression>>,
    ) -> Result<()> {
        let (place, operand) = (self.place(scope, pointer)?, self.value(scope, value)?);
        let scalar = match self.pointee(scope, pointer) {
            Some(TypeInner::Atomic(scalar)) if scalar.width == 4 => scalar,
            other => return Err(unsupported(format!("an atomic operation on {other:?}"))),
        };
        let (name, operand) = match *fun {
            AtomicFunction::Add => ("atomicAdd", operand),
            // The sum wraps.
            AtomicFunction::Subtract if scalar.kind == naga::ScalarKind::Uint => {
                ("atomicAdd", format!("0u - {operand}"))
            }
            AtomicFunction::Subtract => ("atomicAdd", format!("w_neg({operand})")),
            AtomicFunction::And => ("atomicAnd", operand),
            AtomicFunction::ExclusiveOr => ("atomicXor", operand),
            AtomicFunction::InclusiveOr => ("atomicOr", operand),
            AtomicFunction::Min => ("atomicMin", operand),
            AtomicFunction::Max => ("atomicMax", operand),
            AtomicFunction::Exchange { compare: None } => ("atomicExch", operand),
            AtomicFunction::Exchange { compare: Some(compare) } => {
                let result = result.ok_or_else(|| super::expression::unnamed("an exchange"))?;
                let (compare, old) =
                    (self.value(scope, compare)?, format!("old{}_{}", result.index(), scope.named.len()));
                let ty = scalar_name(scalar)?;
                self.line(&format!("const {ty} {old} = atomicCAS(&{place}, {compare}, {operand});"));
                let of = self.type_of(scope, result)?;
                return self.name(scope, result, &format!("{of}{{{old}, {old} == {compare}}}"));
            }
        };
        let call = format!("{name}(&{place}, {operand})");
        match result {
            Some(result) => self.name(scope, result, &call),
            None => {
                self.line(&format!("{call};"));
                Ok(())
            }
        }
    }
}

/// Returns whether a `continue` in a block is that of the loop around it.
fn continues(block: &Block) -> bool {
    block.iter().any(|statement| match statement {
        Statement::Continue => true,
        Statement::Block(block) => continues(block),
        Statement::If { accept, reject, .. } => continues(accept) || continues(reject),
        Statement::Switch { cases, .. } => cases.iter().any(|case| continues(&case.body)),
        _ => false,
    })
}

/// Threads of a warp, which is WGSL's subgroup.
pub const WARP: u32 = 32;

/// Returns the expression for a built-in value of a thread.
fn built_in(builtin: BuiltIn, [x, y, z]: [u32; 3]) -> Result<String> {
    let index = format!("(threadIdx.x + {x}u * (threadIdx.y + {y}u * threadIdx.z))");
    let of_subgroup = matches!(builtin, BuiltIn::SubgroupId | BuiltIn::SubgroupInvocationId);
    if of_subgroup && (x * y * z) % WARP != 0 {
        return Err(unsupported(format!("a subgroup of {} threads", x * y * z % WARP)));
    }
    Ok(match builtin {
        BuiltIn::GlobalInvocationId => format!(
            "Vec<u32, 3>{{{{blockIdx.x * {x}u + threadIdx.x, blockIdx.y * {y}u + threadIdx.y, \
             blockIdx.z * {z}u + threadIdx.z}}}}"
        ),
        BuiltIn::LocalInvocationId => "Vec<u32, 3>{{threadIdx.x, threadIdx.y, threadIdx.z}}".to_owned(),
        BuiltIn::LocalInvocationIndex => index,
        BuiltIn::SubgroupId => format!("({index} / {WARP}u)"),
        BuiltIn::SubgroupInvocationId => format!("({index} % {WARP}u)"),
        BuiltIn::SubgroupSize => format!("{WARP}u"),
        BuiltIn::WorkGroupId => "Vec<u32, 3>{{blockIdx.x, blockIdx.y, blockIdx.z}}".to_owned(),
        BuiltIn::NumWorkGroups => "Vec<u32, 3>{{gridDim.x, gridDim.y, gridDim.z}}".to_owned(),
        BuiltIn::WorkGroupSize => format!("Vec<u32, 3>{{{{{x}u, {y}u, {z}u}}}}"),
        other => return Err(unsupported(format!("the built-in value {other:?}"))),
    })
}
