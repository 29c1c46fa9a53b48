//! Cast and CastLike.
//!
//! Types that models cast a lot have loops of their own ([`crate::kernels::elementwise::unary`], [`crate::kernels::numbers::convert`]); all others go
//! through one loop that reads and writes a number at a time.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::elementwise::unary;
use crate::kernels::numbers::convert::{Convert, Kind, Limits, half_to_single, single_to_half};
use crate::kernels::numbers::small_float::{Overflow, Rounding};
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, CpuDevice>;

const ANY: TypeVar = TypeVar::of(crate::kernels::types::NUMERIC);

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[
    descriptor("Cast", 25, prepare)
        .types(&[ANY, ANY])
        .cost(|request| cost::per_output(request, 1))
        .doc("float to integer truncates and saturates, below 8 bits keeps the low bits, NaN becomes 0; between integers the low bits stay"),
    descriptor("CastLike", 25, prepare)
        .types(&[ANY, ANY])
        .cost(|request| cost::per_output(request, 1))
        .doc("as Cast to the second operand's element type"),
];

/// Elements of a chunk: whole bytes also where an element has fewer bits.
const GRAIN: usize = 16 * 1024;

fn prepare(request: &Request<'_>) -> Result<Prepared> {
    let (from, to) = (request.required_input(0)?.dtype(), request.required_output(0)?.dtype());
    let n = request.required_input(0)?.n_elements();
    if n != request.required_output(0)?.n_elements() {
        return Err(Error::invalid(format!("a result of another number of elements than {n}")));
    }
    let limits = limits(&request.attrs)?;
    if unary::casts(from) && unary::casts(to) {
        return unary::prepare_cast(request);
    }
    let way = match (from, to) {
        (F16 | BF16, F32) => Way::Loop(half_to_single(from, request.device.isa)),
        (F32, F16 | BF16) => Way::Loop(single_to_half(to, request.device.isa)),
        _ => Way::Each(limits),
    };
    Ok(Prepared::new(Cast { host: request.host, n, from: Kind::of(from)?, to: Kind::of(to)?, way }))
}

/// The attributes `saturate` and `round_mode`.
fn limits(attrs: &Attrs<'_>) -> Result<Limits> {
    let overflow = if attrs.int("saturate", 1)? != 0 { Overflow::Saturate } else { Overflow::Infinite };
    let rounding = match attrs.string("round_mode", "up")? {
        "up" => Rounding::Up,
        "down" => Rounding::Down,
        "nearest" => Rounding::Nearest,
        other => {
            return Err(Error::unsupported(format!(
                "expected round_mode up, down or nearest, found {other}"
            )));
        }
    };
    Ok(Limits { overflow, rounding })
}

enum Way {
    Loop(Convert),
    Each(Limits),
}

struct Cast {
    host: Host,
    n: usize,
    from: Kind,
    to: Kind,
    way: Way,
}

impl Launch<CpuDevice> for Cast {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let x = SendPtr(operands.input_ptr::<u8>(0).cast_mut());
        let y = SendPtr(operands.output_ptr::<u8>(0));
        self.host.parallel_for(self.n, GRAIN, |range, _| {
            match self.way {
                Way::Loop(convert) => {
                    let at = |kind: Kind| range.start * (kind.bits() / 8) as usize;
                    // SAFETY: the range lies within both operands, whose sizes `prepare` was told; chunks are
                    // apart, and nothing is in place.
                    unsafe { convert(x.at(at(self.from)), y.at(at(self.to)), range.len()) };
                }
                Way::Each(limits) => {
                    for i in range {
                        // SAFETY: the range lies within the input, whose size `prepare` was told.
                        let value = unsafe { self.from.read(x.at(0), i) };
                        // SAFETY: the range lies within the output; chunks are apart, and begin at whole bytes.
                        unsafe { self.to.write(y.at(0), i, value, limits) };
                    }
                }
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, Value, run};
    use devbay_plugin_api::sdk::*;

    fn cast(attrs: &[(&'static str, Value)], x: Array, to: DType, n: usize) -> Vec<u8> {
        let bytes = (n * usize::from(to.bits)).div_ceil(8);
        let output = [Some(Array::raw(to, &[n], &vec![0xa5; bytes]))];
        let found = run(Isa::Baseline, "Cast", attrs, &[Some(x)], &output).expect("Cast");
        found[0].as_ref().expect("a result").bytes().to_vec()
    }

    #[test]
    fn between_common_and_rare_types() {
        let x = Array::of(&[3], &[1.0f32, -2.5, 65520.0]);
        assert_eq!(cast(&[], x.clone(), F16, 3), [0x00, 0x3c, 0x00, 0xc1, 0x00, 0x7c]);
        assert_eq!(cast(&[], x.clone(), I16, 3), [1, 0, 0xfe, 0xff, 0xff, 0x7f]);
        assert_eq!(cast(&[], x, I32, 3)[..8], [1, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff]);
        assert_eq!(cast(&[], Array::of(&[3], &[1i64, -1, 7]), U4, 3), [0xf1, 0x07]);
        assert_eq!(
            cast(&[], Array::raw(F4E2M1, &[3], &[0x72, 0x0f]), F32, 3),
            bytemuck::bytes_of(&[1.0f32, 6.0, -6.0])
        );
    }

    #[test]
    fn what_is_out_of_range_follows_the_attributes() {
        let x = || Array::of(&[2], &[1e6f32, -1e6]);
        assert_eq!(cast(&[], x(), F8E4M3FN, 2), [0x7e, 0xfe]);
        assert_eq!(cast(&[("saturate", Value::Int(0))], x(), F8E4M3FN, 2), [0x7f, 0xff]);
        assert_eq!(cast(&[("saturate", Value::Int(0))], x(), F8E5M2, 2), [0x7c, 0xfc]);
        let x = || Array::of(&[1], &[1.1f32]);
        assert_eq!(cast(&[], x(), F8E8M0, 1), [128]);
        assert_eq!(cast(&[("round_mode", Value::Text("down"))], x(), F8E8M0, 1), [127]);
        let output = [Some(Array::raw(F8E8M0, &[1], &[0]))];
        let found = run(Isa::Baseline, "Cast", &[("round_mode", Value::Text("odd"))], &[Some(x())], &output);
        assert!(found.is_err_and(|error| error.contains("expected round_mode up, down or nearest")));
    }
}
