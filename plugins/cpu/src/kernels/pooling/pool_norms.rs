//! LpPool and GlobalLpPool: the norm of each window, or of whole channels. Each window is summed in f64, an element at
//! a time; padding adds nothing.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::expect_output;
use crate::kernels::geometry::window::{Window, image, in_and_out};
use crate::kernels::numbers::widen;
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, CpuDevice>;

const SINGLE: &[TypeVar] = &[TypeVar::of(crate::kernels::types::SINGLES)];

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] =
    &[kernel("LpPool", 18, prepare_windows), kernel("GlobalLpPool", 2, prepare_global)];

const fn kernel(
    name: &'static str,
    since_version: u32,
    prepare: fn(&Request<'_>) -> Result<Prepared>,
) -> Kernel<CpuDevice> {
    descriptor(name, since_version, prepare)
        .types(SINGLE)
        .adapted(widen::floats)
        .cost(|request| cost::per_input(request, 4))
}

/// A norm: the p-th root of the sum of p-th powers.
#[derive(Clone, Copy)]
struct Norm {
    p: f64,
}

impl Norm {
    fn of(request: &Request<'_>) -> Result<Self> {
        match request.attrs.int("p", 2)? {
            p if p > 0 => Ok(Self { p: p as f64 }),
            p => Err(Error::invalid(format!("expected a norm of order above 0, found {p}"))),
        }
    }

    fn term(self, x: f32) -> f64 {
        let a = f64::from(x).abs();
        match self.p {
            1.0 => a,
            2.0 => a * a,
            p => a.powf(p),
        }
    }

    fn result(self, sum: f64) -> f32 {
        let root = match self.p {
            1.0 => sum,
            2.0 => sum.sqrt(),
            p => sum.powf(1.0 / p),
        };
        root as f32
    }
}

struct Pool {
    host: Host,
    planes: usize,
    window: Window,
    norm: Norm,
}

fn prepare_windows(request: &Request<'_>) -> Result<Prepared> {
    let (input, output) = in_and_out(request)?;
    let (images, channels, spatial) = image(&input)?;
    let kernel = request.attrs.ints("kernel_shape")?;
    let kernel = kernel.ok_or_else(|| Error::invalid("a pooling without kernel_shape"))?;
    let kernel: Option<Vec<usize>> =
        kernel.iter().map(|&v| usize::try_from(v).ok().filter(|&v| v > 0)).collect();
    let kernel = kernel.ok_or_else(|| Error::invalid("kernel_shape is not all above 0"))?;
    let spatial_out = output.get(2..).unwrap_or_default();
    let window = Window::of(&request.attrs, &kernel, spatial, spatial_out)?;
    expect_output(request, 0, &[&[images, channels], spatial_out].concat())?;
    Ok(Prepared::new(Pool {
        host: request.host,
        planes: images * channels,
        window,
        norm: Norm::of(request)?,
    }))
}

impl Launch<CpuDevice> for Pool {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let (x, y) =
            (SendPtr(operands.input_ptr::<f32>(0).cast_mut()), SendPtr(operands.output_ptr::<f32>(0)));
        let n_output = self.window.n_output();
        let grain = (50_000 / self.window.n_taps().max(1)).max(1);
        self.host.parallel_for(self.planes * n_output, grain, |range, _| {
            let mut pace = self.host.pace();
            for i in range {
                pace.work(8 * self.window.n_taps())?;
                let plane = x.at(i / n_output * self.window.n_input());
                // SAFETY: the plane lies within the input, whose extents `prepare` was told.
                let result = unsafe { self.window_at(plane, i % n_output) };
                // SAFETY: the place lies within the output, and chunks are apart.
                unsafe { y.at(i).write(result) };
            }
            Ok(())
        })
    }
}

impl Pool {
    /// The result of one window.
    ///
    /// # Safety
    /// `x` has the elements of a plane.
    unsafe fn window_at(&self, x: *const f32, i: usize) -> f32 {
        let window = &self.window;
        let [_, height, width] = window.output;
        let place = [i / width / height, i / width % height, i % width];
        let position = |d: usize, tap: usize| place[d] * window.stride[d] + tap * window.dilation[d];
        let mut sum = 0.0;
        for a in 0..window.kernel[0] {
            for b in 0..window.kernel[1] {
                for c in 0..window.kernel[2] {
                    let at = [position(0, a), position(1, b), position(2, c)];
                    let within =
                        |d: usize| at[d].checked_sub(window.pad[d]).filter(|&at| at < window.input[d]);
                    if let (Some(a), Some(b), Some(c)) = (within(0), within(1), within(2)) {
                        let at = (a * window.input[1] + b) * window.input[2] + c;
                        // SAFETY: the position is within the plane.
                        sum += self.norm.term(unsafe { x.add(at).read() });
                    }
                }
            }
        }
        self.norm.result(sum)
    }
}

/// Whole channels.
struct Global {
    host: Host,
    planes: usize,
    n: usize,
    norm: Norm,
}

fn prepare_global(request: &Request<'_>) -> Result<Prepared> {
    let (input, output) = in_and_out(request)?;
    let (images, channels, spatial) = image(&input)?;
    if output.iter().product::<usize>() != images * channels {
        return Err(Error::invalid(format!("an output of {output:?} from {input:?}")));
    }
    let norm = Norm::of(request)?;
    Ok(Prepared::new(Global {
        host: request.host,
        planes: images * channels,
        n: spatial.iter().product(),
        norm,
    }))
}

impl Launch<CpuDevice> for Global {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let (x, y) =
            (SendPtr(operands.input_ptr::<f32>(0).cast_mut()), SendPtr(operands.output_ptr::<f32>(0)));
        self.host.parallel_for(self.planes, (50_000 / self.n.max(1)).max(1), |planes, _| {
            for plane in planes {
                // SAFETY: the plane lies within the input, whose extents `prepare` was told.
                let read = |i: usize| unsafe { x.at(plane * self.n + i).read() };
                let sum = (0..self.n).map(|i| self.norm.term(read(i))).sum();
                // SAFETY: there is a result for each plane, and chunks are apart.
                unsafe { y.at(plane).write(self.norm.result(sum)) };
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, Value, run};

    fn check(op: &str, attrs: &[(&'static str, Value)], x: (&[usize], &[f32]), y: (&[usize], &[f32])) {
        let inputs = [Some(Array::of(x.0, x.1))];
        let found = run(Isa::Baseline, op, attrs, &inputs, &[Some(Array::empty::<f32>(y.0))]).expect(op);
        assert_eq!(found[0].as_ref().expect("a result").elements::<f32>(), y.1, "{op}");
    }

    #[test]
    fn norms_of_windows() {
        let attrs = || vec![("kernel_shape", Value::Ints(vec![2])), ("strides", Value::Ints(vec![2]))];
        let x = [3.0, -4.0, 5.0, 12.0];
        check("LpPool", &attrs(), (&[1, 1, 4], &x), (&[1, 1, 2], &[5.0, 13.0]));
        let mut first = attrs();
        first.push(("p", Value::Int(1)));
        check("LpPool", &first, (&[1, 1, 4], &x), (&[1, 1, 2], &[7.0, 17.0]));
        // A padding adds nothing.
        let mut padded = attrs();
        padded.push(("pads", Value::Ints(vec![1, 1])));
        check("LpPool", &padded, (&[1, 1, 4], &x), (&[1, 1, 3], &[3.0, 41f32.sqrt(), 12.0]));
        check("GlobalLpPool", &[], (&[1, 2, 2], &x), (&[1, 2, 1], &[5.0, 13.0]));
        let wrong = [Some(Array::of(&[1, 1, 2], &[0.0f32; 2]))];
        let found = run(
            Isa::Baseline,
            "GlobalLpPool",
            &[("p", Value::Int(0))],
            &wrong,
            &[Some(Array::empty::<f32>(&[1, 1, 1]))],
        );
        assert!(found.is_err_and(|error| error.contains("order above 0")));
    }
}
