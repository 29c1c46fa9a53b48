//! Unique: the different elements, or slices of an axis, and where they were.
//!
//! Runs on one thread: it sorts positions in the workspace. NaNs count as one.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::{around, axis, element_size, expect_output, extents};
use crate::kernels::geometry::strided::copy_run;
use crate::kernels::numbers::order::{KeyFn, key_of};
use crate::kernels::sorting::lists::{Order, sort};
use crate::kernels::types::MOVABLE;
use crate::stream::CpuStream;
use core::cmp::Ordering;
use core::ops::Range;
use devbay_ops::descriptor;
use devbay_plugin_api::abi::{DEVBAY_KERNEL_DATA_SHAPE, DEVBAY_KERNEL_DETERMINISTIC};
use devbay_plugin_api::reserve::Size;
use devbay_plugin_api::sdk::*;

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[descriptor("Unique", 11, unique)
    .types(&[TypeVar::of(MOVABLE), TypeVar::of(&[I64])])
    .flags(DEVBAY_KERNEL_DETERMINISTIC | DEVBAY_KERNEL_DATA_SHAPE)
    .cost(cost)];

fn cost(request: &PrepareRequest<'_, CpuDevice>) -> Result<Cost> {
    cost::per_input(request, 16)
}

/// Numbers of the workspace for each slice.
const LISTS: usize = 5;

/// Elements between two looks whether the run goes on.
const PIECE: usize = 1 << 16;

struct Unique {
    host: Host,
    around: [usize; 3],
    /// The output's extents, of which the one at `axis` is what is found.
    to: Vec<usize>,
    axis: usize,
    sorted: bool,
    size: usize,
    key: KeyFn,
}

fn unique(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let input = request.required_input(0)?;
    let from = extents(input)?;
    let (to, axis) = match request.attrs.get("axis") {
        None => (vec![from.iter().product()], 0),
        Some(_) => (from.clone(), axis(request.attrs.int("axis", 0)?, from.len())?),
    };
    let n = to[axis];
    for i in 0..4 {
        match (i, request.output(i)) {
            (_, None) => {}
            (0, Some(_)) => expect_output(request, 0, &to)?,
            (i, Some(_)) => expect_output(request, i, &[n])?,
        }
    }
    let kernel = Unique {
        host: request.host,
        around: around(&to, axis),
        to,
        axis,
        sorted: match request.attrs.int("sorted", 1)? {
            0 => false,
            1 => true,
            found => return Err(Error::invalid(format!("sorted is {found}, expected 0 or 1"))),
        },
        size: element_size(input.dtype()),
        key: key_of(input.dtype())?,
    };
    Prepared::new(kernel).with_room(Size::of(n.max(1)) * (LISTS * size_of::<usize>()), 64)
}

impl Unique {
    /// Elements of a slice.
    fn n_elements(&self) -> usize {
        let [outer, _, inner] = self.around;
        outer * inner
    }

    /// The order of two slices, element by element, of which only some are looked at.
    ///
    /// # Safety
    /// `input` holds the op's elements, both slices are of them, and the elements of the slices.
    unsafe fn compare(&self, input: *const u8, a: usize, b: usize, elements: Range<usize>) -> Ordering {
        let [_, n, inner] = self.around;
        for i in elements {
            let key = |slice: usize| {
                let at = (i / inner * n + slice) * inner + i % inner;
                // SAFETY: the element is one of the slice.
                unsafe { (self.key)(input.wrapping_add(at * self.size)) }
            };
            match key(a).cmp(&key(b)) {
                Ordering::Equal => {}
                other => return other,
            }
        }
        Ordering::Equal
    }
}

/// Slices by their elements, and those that are the same by their place.
struct BySlice<'u> {
    unique: &'u Unique,
    /// # Invariants
    /// Holds the op's elements.
    input: *const u8,
}

impl BySlice<'_> {
    /// The order of two slices by their elements alone.
    ///
    /// # Errors
    /// CANCELLED if the run is to end.
    fn by_elements(&self, a: usize, b: usize, pace: &mut Pace<'_>) -> Result<Ordering> {
        let n = self.unique.n_elements();
        for start in (0..n).step_by(PIECE) {
            let piece = start..n.min(start + PIECE);
            pace.work(4 * piece.len())?;
            // SAFETY: the invariant of `input`; slices and elements are within it, as lists have positions below the extents.
            match unsafe { self.unique.compare(self.input, a, b, piece) } {
                Ordering::Equal => {}
                other => return Ok(other),
            }
        }
        Ok(Ordering::Equal)
    }
}

impl Order<usize> for BySlice<'_> {
    fn cost(&self) -> usize {
        self.unique.n_elements().saturating_mul(4).saturating_add(1)
    }

    fn compare(&self, a: &usize, b: &usize) -> Ordering {
        // SAFETY: `input` holds the op's elements (invariant), and slices of lists are below the extents.
        unsafe { self.unique.compare(self.input, *a, *b, 0..self.unique.n_elements()) }.then(a.cmp(b))
    }

    fn compare_looking(&self, a: &usize, b: &usize, pace: &mut Pace<'_>) -> Result<Ordering> {
        Ok(self.by_elements(*a, *b, pace)?.then(a.cmp(b)))
    }
}

/// Groups by the slice that came first.
struct ByFirst<'u>(&'u [usize]);

impl Order<usize> for ByFirst<'_> {
    fn cost(&self) -> usize {
        2
    }

    fn compare(&self, a: &usize, b: &usize) -> Ordering {
        self.0[*a].cmp(&self.0[*b])
    }
}

impl Launch<CpuDevice> for Unique {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let [outer, n, inner] = self.around;
        let input = operands.input_ptr::<u8>(0);
        // SAFETY: the workspace has room for as many, and is this launch's own.
        let room =
            unsafe { core::slice::from_raw_parts_mut(operands.workspace_ptr::<usize>(), LISTS * n.max(1)) };
        room.fill(0);
        let mut lists = room.chunks_exact_mut(n.max(1));
        let [Some(order), Some(group), Some(first), Some(count), Some(by_place)] =
            core::array::from_fn(|_| lists.next())
        else {
            return Err(Error::invalid("a workspace that is too small"));
        };
        let order = &mut order[..n];
        order.iter_mut().enumerate().for_each(|(i, slice)| *slice = i);
        let mut pace = self.host.pace();
        let by_slice = BySlice { unique: self, input };
        sort(order, &by_slice, &mut pace)?;
        let mut found = 0;
        for (i, &slice) in order.iter().enumerate() {
            if i == 0 || by_slice.by_elements(order[i - 1], slice, &mut pace)? != Ordering::Equal {
                first[found] = slice;
                found += 1;
            }
            group[slice] = found - 1;
            count[found - 1] += 1;
        }
        let groups = &mut by_place[..found];
        groups.iter_mut().enumerate().for_each(|(i, group)| *group = i);
        if !self.sorted {
            sort(groups, &ByFirst(first), &mut pace)?;
        }
        // The sorted slices are not needed any more: from here on, the place of each group.
        for (place, &group) in groups.iter().enumerate() {
            order[group] = place;
        }
        let n_outputs = operands.n_outputs();
        let output =
            |i: usize| (i < n_outputs).then(|| operands.output_ptr::<i64>(i)).filter(|at| !at.is_null());
        for (place, &group) in groups.iter().enumerate() {
            pace.work(8 + self.n_elements())?;
            for i in (0..outer).take_while(|_| output(0).is_some() && inner * self.size > 0) {
                let source = input.wrapping_add((i * n + first[group]) * inner * self.size);
                let target = operands.output_ptr::<u8>(0);
                let target = target.wrapping_add((i * found + place) * inner * self.size);
                // SAFETY: the slice is the input's, and the output, which overlaps no other operand (B21), has room for all
                // of them.
                unsafe { copy_run(source, target, inner * self.size) };
            }
            for (i, value) in [(1, first[group]), (3, count[group])] {
                if let Some(at) = output(i) {
                    // SAFETY: the output has room for as many as there are slices.
                    unsafe { at.add(place).write(value as i64) };
                }
            }
        }
        if let Some(at) = output(2) {
            for (slice, &group) in group[..n].iter().enumerate() {
                // SAFETY: the output is there, so it has room for as many as there are slices.
                unsafe { at.add(slice).write(order[group] as i64) };
            }
        }
        let mut extents = operands.extents_ptr();
        let mut say = |extent: usize| {
            // SAFETY: the host lends room for the extents of all outputs that are there.
            unsafe { extents.write(extent as i64) };
            extents = extents.wrapping_add(1);
        };
        for i in (0..4).filter(|&i| output(i).is_some()) {
            match i {
                0 => {
                    let dims = self.to.iter().enumerate();
                    dims.for_each(|(i, &extent)| say(if i == self.axis { found } else { extent }));
                }
                2 => say(n),
                _ => say(found),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, Value, run};

    #[test]
    fn elements_in_order_or_as_they_came() {
        let x = [2.0f32, f32::NAN, 1.0, 3.0, 1.0, -0.0, f32::NAN, 0.0];
        let found = |sorted: i64| {
            let outputs = [
                Some(Array::empty::<f32>(&[8])),
                Some(Array::empty::<i64>(&[8])),
                Some(Array::empty::<i64>(&[8])),
                Some(Array::empty::<i64>(&[8])),
            ];
            let attrs = [("sorted", Value::Int(sorted))];
            let found = run(Isa::Baseline, "Unique", &attrs, &[Some(Array::of(&[2, 4], &x))], &outputs);
            let found = found.expect("finds");
            let ints =
                |i: usize, n: usize| found[i].as_ref().expect("an output").elements::<i64>()[..n].to_vec();
            assert_eq!(ints(4, 4), [5, 5, 8, 5]);
            [ints(1, 5), ints(2, 8), ints(3, 5)]
        };
        assert_eq!(found(1), [vec![5, 2, 0, 3, 1], vec![2, 4, 1, 3, 1, 0, 4, 0], vec![2, 2, 1, 1, 2]]);
        assert_eq!(found(0), [vec![0, 1, 2, 3, 5], vec![0, 1, 2, 3, 2, 4, 1, 4], vec![1, 2, 2, 1, 2]]);
    }

    #[test]
    fn slices_of_an_axis() {
        let x = [5u8, 1, 5, 6, 2, 6];
        let inputs = [Some(Array::of(&[2, 3], &x))];
        let outputs = [Some(Array::empty::<u8>(&[2, 3])), None, Some(Array::empty::<i64>(&[3]))];
        let unique =
            |axis: i64| run(Isa::Baseline, "Unique", &[("axis", Value::Int(axis))], &inputs, &outputs);
        let found = unique(1).expect("finds");
        assert_eq!(found[0].as_ref().expect("an output").elements::<u8>()[..4], [1, 5, 2, 6]);
        assert_eq!(found[2], Some(Array::of(&[3], &[1i64, 0, 1])));
        assert_eq!(found[3], Some(Array::of(&[3], &[2i64, 2, 3])));
        assert!(unique(2).is_err());
    }
}
