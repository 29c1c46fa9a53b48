//! DeformConv: a convolution whose windows are pulled apart by offsets, so that it reads between elements.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::{expect_output, extents};
use crate::kernels::numbers::real::{Real, Source};
use crate::kernels::types::FLOATS;
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_plugin_api::sdk::*;

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[descriptor("DeformConv", 19, deform_conv)
    .types(&[TypeVar::of(FLOATS)])
    .cost(cost)
    .doc("images of one to three axes")];

fn cost(request: &PrepareRequest<'_, CpuDevice>) -> Result<Cost> {
    // Of each output channel.
    let w: usize = extents(request.required_input(1)?)?.iter().skip(1).product();
    cost::per_output(request, 20 * w as u64)
}

/// Most axes of an image.
const AXES_MAX: usize = 3;

/// One number for each axis; axes that an image does not have come first, and have one element.
type Each = [usize; AXES_MAX];

struct DeformConv {
    host: Host,
    real: Real,
    axes: usize,
    batches: usize,
    /// Channels in and out, groups of them, channels in of a group, and those that share offsets.
    from: usize,
    to: usize,
    group: usize,
    of_group: usize,
    per_offset: usize,
    image: Each,
    places: Each,
    kernel: Each,
    strides: Each,
    dilations: Each,
    pads: Each,
    has_bias: bool,
    has_mask: bool,
}

fn deform_conv(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let attrs = &request.attrs;
    let shape = |i: usize| request.required_input(i).and_then(extents);
    let (x, w, offset) = (shape(0)?, shape(1)?, shape(2)?);
    let broken = || Error::invalid(format!("an input of {x:?}, kernels of {w:?} and offsets of {offset:?}"));
    let ([batches, from, image @ ..], [to, of_group, kernel @ ..], [ob, rows, places @ ..]) =
        (&x[..], &w[..], &offset[..])
    else {
        return Err(broken());
    };
    let axes = image.len();
    if axes == 0 || axes > AXES_MAX {
        return Err(Error::unsupported(format!("an image of {axes} axes, expected 1 to {AXES_MAX}")));
    }
    let count = |name| match usize::try_from(attrs.int(name, 1)?) {
        Ok(n) if n > 0 => Ok(n),
        _ => Err(Error::invalid(format!("{name} is not above 0"))),
    };
    let (group, offset_group) = (count("group")?, count("offset_group")?);
    let list = |name: &str, default: usize, least: usize, n: usize| match attrs.ints(name)? {
        None => Ok(vec![default; n]),
        Some(found) => {
            let list: Option<Vec<_>> = found.iter().map(|&n| usize::try_from(n).ok()).collect();
            list.filter(|list| list.len() == n && list.iter().all(|n| (least..1 << 31).contains(n)))
                .ok_or_else(|| {
                    Error::invalid(format!("{name} is {found:?}, expected {n} numbers from {least}"))
                })
        }
    };
    let (strides, dilations) = (list("strides", 1, 1, axes)?, list("dilations", 1, 1, axes)?);
    let pads = list("pads", 0, 0, 2 * axes)?;
    let said = attrs.ints("kernel_shape")?;
    let same = |said: &Vec<i64>| said.iter().copied().eq(kernel.iter().map(|&n| n as i64));
    let in_kernel: usize = kernel.iter().product();
    let of_offsets = in_kernel.checked_mul(axes).and_then(|n| n.checked_mul(offset_group));
    let fits = kernel.len() == axes
        && places.len() == axes
        && ob == batches
        && of_group.checked_mul(group) == Some(*from)
        && to.is_multiple_of(group)
        && from.is_multiple_of(offset_group)
        && of_offsets == Some(*rows)
        && said.as_ref().is_none_or(same)
        && in_kernel > 0;
    let expected = |i: usize| {
        let span = (kernel[i] - 1).checked_mul(dilations[i]).and_then(|span| span.checked_add(1));
        // Pads are below 2^31.
        let room = image[i] + pads[i] + pads[axes + i];
        span.and_then(|span| room.checked_sub(span)).map_or(0, |rest| rest / strides[i] + 1)
    };
    if !fits || (0..axes).any(|i| places[i] != expected(i)) {
        return Err(broken());
    }
    expect_output(request, 0, &[&[*batches, *to], places].concat())?;
    let optional = |i: usize, expected: &[usize]| match request.input(i).map(extents).transpose()? {
        None => Ok(false),
        Some(found) if found == expected => Ok(true),
        Some(found) => Err(Error::invalid(format!("input {i} of {found:?}, expected {expected:?}"))),
    };
    let has_bias = optional(3, &[*to])?;
    let has_mask = optional(4, &[&[*batches, offset_group * in_kernel], places].concat())?;
    let each = |list: &[usize], default: usize| {
        let mut each = [default; AXES_MAX];
        each[AXES_MAX - axes..].copy_from_slice(&list[..axes]);
        each
    };
    Ok(Prepared::new(DeformConv {
        host: request.host,
        real: Real::of(request.required_input(0)?.dtype())?,
        axes,
        batches: *batches,
        from: *from,
        to: *to,
        group,
        of_group: *of_group,
        per_offset: from / offset_group,
        image: each(image, 1),
        places: each(places, 1),
        kernel: each(kernel, 1),
        strides: each(&strides, 1),
        dilations: each(&dilations, 1),
        pads: each(&pads, 0),
        has_bias,
        has_mask,
    }))
}

/// The operands of a launch.
struct Tensors {
    x: Source,
    w: Source,
    offset: Source,
    bias: Option<Source>,
    mask: Option<Source>,
}

impl Launch<CpuDevice> for DeformConv {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let source = |i: usize| self.real.source(operands.input_ref(i));
        let tensors = Tensors {
            x: source(0),
            w: source(1),
            offset: source(2),
            bias: self.has_bias.then(|| source(3)),
            mask: self.has_mask.then(|| source(4)),
        };
        let y = self.real.sink(operands.output_ref(0));
        let n: usize = self.places.iter().product();
        self.host.parallel_for(self.batches * self.to * n, 16, |range, _| {
            let mut pace = self.host.pace();
            for i in range {
                let (plane, at) = (i / n, i % n);
                let sum = self.sum(&tensors, [plane / self.to, plane % self.to], at, &mut pace)?;
                // SAFETY: chunks do not overlap.
                unsafe { y.set(i, sum) };
            }
            Ok(())
        })
    }
}

impl DeformConv {
    /// One element of the result.
    fn sum(&self, tensors: &Tensors, [batch, to]: [usize; 2], at: usize, pace: &mut Pace<'_>) -> Result<f64> {
        let n: usize = self.places.iter().product();
        let in_kernel: usize = self.kernel.iter().product();
        let group = to / (self.to / self.group);
        let corner = position(at, self.places);
        let mut sum = tensors.bias.map_or(0.0, |bias| bias.get(to));
        for channel in 0..self.of_group {
            pace.work(64 * in_kernel)?;
            let from = group * self.of_group + channel;
            let offsets = (batch * (self.from / self.per_offset) + from / self.per_offset) * in_kernel;
            for k in 0..in_kernel {
                let in_window = position(k, self.kernel);
                let mut place = [0.0; AXES_MAX];
                for axis in 0..AXES_MAX {
                    let first = (corner[axis] * self.strides[axis]) as f64 - self.pads[axis] as f64;
                    place[axis] = first + (in_window[axis] * self.dilations[axis]) as f64;
                    if let Some(i) = (axis + self.axes).checked_sub(AXES_MAX) {
                        place[axis] += tensors.offset.get(((offsets + k) * self.axes + i) * n + at);
                    }
                }
                let seen = self.between(tensors.x, batch * self.from + from, place);
                let part = tensors.mask.map_or(1.0, |mask| mask.get((offsets + k) * n + at));
                sum += seen * part * tensors.w.get((to * self.of_group + channel) * in_kernel + k);
            }
        }
        Ok(sum)
    }

    /// The image between its elements; outside of it everything is 0.
    fn between(&self, x: Source, plane: usize, place: [f64; AXES_MAX]) -> f64 {
        let mut sum = 0.0;
        for corner in 0..1usize << AXES_MAX {
            let (mut weight, mut at, mut inside) = (1.0, plane, true);
            for axis in 0..AXES_MAX {
                let (floor, upper) = (place[axis].floor(), corner >> axis & 1 == 1);
                let t = place[axis] - floor;
                weight *= if upper { t } else { 1.0 - t };
                let wanted = if upper { floor + 1.0 } else { floor };
                inside &= wanted >= 0.0 && wanted < self.image[axis] as f64;
                at = at * self.image[axis] + if inside { wanted as usize } else { 0 };
            }
            if inside && weight != 0.0 {
                sum += weight * x.get(at);
            }
        }
        sum
    }
}

/// The position of an element on each axis.
fn position(mut at: usize, extents: Each) -> Each {
    let mut found = [0; AXES_MAX];
    for (found, extent) in found.iter_mut().zip(extents).rev() {
        (*found, at) = (at % extent, at / extent);
    }
    found
}

#[cfg(test)]
mod tests {
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, Value, run};

    #[test]
    fn windows_are_pulled_apart() {
        // A kernel of two elements on a line of four; the second one is moved.
        let found = |moved: [f32; 3], pads: Vec<i64>, mask: f32| {
            let n = (3 + pads.iter().sum::<i64>()) as usize;
            let mut offsets = vec![0.0; n];
            offsets.extend(moved.iter().chain(&[0.0; 2]).take(n));
            let inputs = [
                Some(Array::of(&[1, 1, 4], &[1.0f32, 2.0, 4.0, 8.0])),
                Some(Array::of(&[1, 1, 2], &[100.0f32, 1.0])),
                Some(Array::of(&[1, 2, n], &offsets)),
                Some(Array::of(&[1], &[0.5f32])),
                Some(Array::of(&[1, 2, n], &vec![mask; 2 * n])),
            ];
            let output = [Some(Array::empty::<f32>(&[1, 1, n]))];
            let found = run(Isa::Baseline, "DeformConv", &[("pads", Value::Ints(pads))], &inputs, &output)?;
            Ok(found[0].as_ref().expect("an output").elements::<f32>())
        };
        assert_eq!(found([0.0; 3], vec![0, 0], 1.0), Ok(vec![102.5, 204.5, 408.5]));
        assert_eq!(found([0.5, -1.0, 0.5], vec![0, 0], 1.0), Ok(vec![103.5, 202.5, 404.5]));
        assert_eq!(found([0.0; 3], vec![1, 0], 0.5), Ok(vec![1.0, 51.5, 102.5, 204.5]));
        let error: String = found([f32::NAN; 3], vec![-1, 0], 1.0).expect_err("a pad below 0");
        assert!(error.contains("2 numbers from 0"), "{error}");
    }
}
