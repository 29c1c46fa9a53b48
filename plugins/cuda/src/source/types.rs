//! Types in CUDA C: their names, and structs whose members lie where WGSL has them.

use super::{Writer, identifier, unsupported};
use devbay_plugin_api::sdk::Result;
use naga::{ArraySize, Handle, Scalar, ScalarKind, Type, TypeInner, VectorSize};

/// The C name of a scalar type.
///
/// # Errors
/// Unsupported for 16-bit integers and 64-bit floats.
pub(super) fn scalar_name(scalar: Scalar) -> Result<&'static str> {
    Ok(match (scalar.kind, scalar.width) {
        (ScalarKind::Float, 4) => "float",
        (ScalarKind::Float, 2) => "f16",
        (ScalarKind::Sint, 4) => "int",
        (ScalarKind::Uint, 4) => "u32",
        (ScalarKind::Sint, 8) => "i64",
        (ScalarKind::Uint, 8) => "u64",
        (ScalarKind::Bool, _) => "bool",
        (kind, width) => return Err(unsupported(format!("a scalar {kind:?} of {width} bytes"))),
    })
}

pub(super) fn vector_name(size: VectorSize, scalar: Scalar) -> Result<String> {
    Ok(format!("Vec<{}, {}>", scalar_name(scalar)?, size as u8))
}

impl Writer<'_> {
    pub(super) fn type_name(&self, handle: Handle<Type>) -> Result<String> {
        match self.module.types[handle].inner {
            TypeInner::Struct { .. } => Ok(format!("S{}", handle.index())),
            ref inner => self.inner_name(inner),
        }
    }

    pub(super) fn inner_name(&self, inner: &TypeInner) -> Result<String> {
        match *inner {
            TypeInner::Scalar(scalar) | TypeInner::Atomic(scalar) => Ok(scalar_name(scalar)?.to_owned()),
            TypeInner::Vector { size, scalar } => vector_name(size, scalar),
            TypeInner::Array { base, size: ArraySize::Constant(n), .. } => {
                Ok(format!("Arr<{}, {n}>", self.type_name(base)?))
            }
            // A pointer is a reference; to an array of any length, that of its first element.
            TypeInner::Pointer { base, .. } => match self.module.types[base].inner {
                TypeInner::Array { base, size: ArraySize::Dynamic, .. } => {
                    Ok(format!("{}*", self.type_name(base)?))
                }
                _ => Ok(format!("{}&", self.type_name(base)?)),
            },
            TypeInner::ValuePointer { size: Some(size), scalar, .. } => {
                Ok(format!("{}&", vector_name(size, scalar)?))
            }
            TypeInner::ValuePointer { size: None, scalar, .. } => Ok(format!("{}&", scalar_name(scalar)?)),
            ref other => Err(unsupported(format!("the type {other:?}"))),
        }
    }

    /// The element of an array of any length.
    pub(super) fn element(&self, handle: Handle<Type>) -> Option<(Handle<Type>, u32)> {
        match self.module.types[handle].inner {
            TypeInner::Array { base, size: ArraySize::Dynamic, stride } => Some((base, stride)),
            _ => None,
        }
    }

    /// Size and alignment as C has them.
    fn layout(&self, handle: Handle<Type>) -> Result<(u32, u32)> {
        match self.module.types[handle].inner {
            TypeInner::Scalar(scalar) | TypeInner::Atomic(scalar) => {
                Ok((u32::from(scalar.width), u32::from(scalar.width)))
            }
            TypeInner::Vector { size, scalar } => {
                let n = if size == VectorSize::Tri { 4 } else { size as u32 };
                Ok((n * u32::from(scalar.width), n * u32::from(scalar.width)))
            }
            TypeInner::Array { base, size: ArraySize::Constant(n), .. } => {
                let (size, align) = self.layout(base)?;
                Ok((size * n.get(), align))
            }
            TypeInner::Struct { ref members, span } => {
                let mut most = 1;
                for member in members {
                    most = most.max(self.layout(member.ty)?.1);
                }
                Ok((span.next_multiple_of(most), most))
            }
            ref other => Err(unsupported(format!("memory of the type {other:?}"))),
        }
    }

    /// Returns the fields of a struct, in order.
    pub(super) fn fields(&self, handle: Handle<Type>) -> Result<Vec<Field>> {
        let TypeInner::Struct { ref members, span } = self.module.types[handle].inner else {
            return Err(unsupported("a member of what is no struct"));
        };
        let (mut fields, mut end) = (Vec::new(), 0u32);
        for (i, member) in members.iter().enumerate() {
            let (size, align) = self.layout(member.ty)?;
            if end > member.offset {
                return Err(unsupported("a member of a struct that lies within a vec3's padding"));
            }
            if end.next_multiple_of(align) < member.offset {
                fields.push(Field::Gap(member.offset - end));
            }
            fields.push(Field::Member(i));
            end = member.offset + size;
        }
        let (_, align) = self.layout(handle)?;
        if end.next_multiple_of(align) != span.next_multiple_of(align) {
            return Err(unsupported("a struct that is larger than its members"));
        }
        Ok(fields)
    }

    /// Every struct, in an order in which each knows those it is made of; arrays keep WGSL's stride or are refused.
    pub(super) fn structs(&mut self) -> Result<()> {
        let module = self.module;
        for (handle, ty) in module.types.iter() {
            match ty.inner {
                TypeInner::Array { base, stride, .. } => {
                    let (size, _) = self.layout(base)?;
                    if size != stride {
                        let text = format!("an array of stride {stride} with elements of {size} bytes");
                        return Err(unsupported(text));
                    }
                }
                TypeInner::Struct { ref members, .. } => self.definition(handle, members)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn definition(&mut self, handle: Handle<Type>, members: &[naga::StructMember]) -> Result<()> {
        let s = handle.index();
        self.line(&format!("struct S{s} {{"));
        self.indent += 1;
        for (k, field) in self.fields(handle)?.into_iter().enumerate() {
            match field {
                Field::Gap(bytes) => self.line(&format!("char gap{k}[{bytes}];")),
                Field::Member(i) => {
                    let ty = self.type_name(members[i].ty)?;
                    self.line(&format!("{ty} {};", field_name(i, members[i].name.as_deref())));
                }
            }
        }
        self.indent -= 1;
        self.line("};");
        // Members are where WGSL has them if their types are as large and as aligned as `fields` takes them to be; NVRTC knows
        // `__builtin_offsetof` since 13.1 or so only.
        let (size, align) = self.layout(handle)?;
        self.line(&format!("static_assert(sizeof(S{s}) == {size} && alignof(S{s}) == {align}, \"\");"));
        Ok(())
    }
}

/// A part of a struct.
pub(super) enum Field {
    /// Padding bytes.
    Gap(u32),
    /// A member, by its position.
    Member(usize),
}

/// The name of a struct's member.
pub(super) fn field_name(index: usize, name: Option<&str>) -> String {
    format!("m{index}_{}", identifier(name.unwrap_or_default()))
}
