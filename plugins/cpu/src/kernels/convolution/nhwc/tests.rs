//! Convolutions of images whose channels come last, beside the definition.

use crate::kernels::test_host::{Array, Value, run_permitted};
use crate::kernels::testing::{Chance, isas, rounded};
use devbay_plugin_api::abi::{DEVBAY_NUMERICS_BF16, DEVBAY_NUMERICS_STRICT};

/// A case: extents and attributes of a convolution of one to three dimensions.
#[derive(Debug)]
struct Case {
    images: usize,
    groups: usize,
    c_in: usize,
    c_out: usize,
    image: Vec<usize>,
    kernel: Vec<usize>,
    stride: Vec<usize>,
    dilation: Vec<usize>,
    pad: Vec<usize>,
}

impl Case {
    /// A plane with a window of 3 x 3 that moves by one, padded by one.
    fn plane(images: usize, [c_in, c_out]: [usize; 2], [height, width]: [usize; 2]) -> Self {
        let [kernel, pad, one] = [3, 1, 1].map(|extent| vec![extent; 2]);
        let (stride, dilation) = (one.clone(), one);
        Self { images, groups: 1, c_in, c_out, image: vec![height, width], kernel, stride, dilation, pad }
    }

    /// The same of each channel by itself.
    fn depthwise(images: usize, channels: usize, plane: [usize; 2]) -> Self {
        Self { groups: channels, ..Self::plane(images, [1, 1], plane) }
    }

    fn attrs(&self) -> Vec<(&'static str, Value)> {
        let ints = |values: &[usize]| Value::Ints(values.iter().map(|&n| n as i64).collect());
        vec![
            ("strides", ints(&self.stride)),
            ("dilations", ints(&self.dilation)),
            ("pads", ints(&[&self.pad[..], &self.pad].concat())),
            ("group", Value::Int(self.groups as i64)),
        ]
    }

    fn out(&self) -> Vec<usize> {
        let extent = |i: usize| {
            let span = (self.kernel[i] - 1) * self.dilation[i] + 1;
            (self.image[i] + 2 * self.pad[i] - span) / self.stride[i] + 1
        };
        (0..self.image.len()).map(extent).collect()
    }

    fn shapes(&self) -> [Vec<usize>; 3] {
        let x = [&[self.images][..], &self.image, &[self.groups * self.c_in]].concat();
        let w = [&[self.groups * self.c_out, self.c_in][..], &self.kernel].concat();
        [x, w, [&[self.images][..], &self.out(), &[self.groups * self.c_out]].concat()]
    }

    /// Calls `f` for each term of each result: result, pixel and channel of the image (None in the padding), weight.
    fn each(&self, mut f: impl FnMut(usize, Option<usize>, usize)) {
        let (out, rank) = (self.out(), self.image.len());
        let [n_out, n_taps]: [usize; 2] = [&out, &self.kernel].map(|extents| extents.iter().product());
        let split = |mut at: usize, extents: &[usize]| {
            let mut place = vec![0; extents.len()];
            for i in (0..extents.len()).rev() {
                (place[i], at) = (at % extents[i], at / extents[i]);
            }
            place
        };
        let channels = self.groups * self.c_out;
        for pixel in 0..self.images * n_out {
            let (image, place) = (pixel / n_out, split(pixel % n_out, &out));
            for tap in 0..n_taps {
                let of_tap = split(tap, &self.kernel);
                let seen = (0..rank).try_fold(0, |at, i| {
                    let position = place[i] * self.stride[i] + of_tap[i] * self.dilation[i];
                    let position = position.checked_sub(self.pad[i]).filter(|&at| at < self.image[i])?;
                    Some(at * self.image[i] + position)
                });
                let n_in: usize = self.image.iter().product();
                for channel in 0..channels {
                    for c in 0..self.c_in {
                        let x = seen.map(|at| {
                            let from = channel / self.c_out * self.c_in + c;
                            (image * n_in + at) * self.groups * self.c_in + from
                        });
                        f(pixel * channels + channel, x, (channel * self.c_in + c) * n_taps + tap);
                    }
                }
            }
        }
    }
}

/// The results on every instruction set.
fn found(case: &Case, x: &[f32], w: &[f32], constants: u64, more: &More) -> Vec<Vec<f32>> {
    let [of_x, of_w, of_y] = case.shapes();
    let channels = case.groups * case.c_out;
    let mut attrs = case.attrs();
    if let Some(name) = more.activation {
        attrs.push(("activation", Value::Text(name)));
    }
    let bias = more.bias.then(|| Array::of(&[channels], &more.addend[..channels]));
    let z = more.z.then(|| Array::of(&of_y, &more.addend[..of_y.iter().product()]));
    let inputs = [Some(Array::of(&of_x, x)), Some(Array::of(&of_w, w)), bias, z];
    let y = [Some(Array::empty::<f32>(&of_y))];
    let run = |isa| {
        let found = run_permitted(isa, more.numerics, "NhwcFusedConv", &attrs, &inputs, &y, constants);
        found.unwrap_or_else(|error| panic!("{case:?}: {error}"))[0].as_ref().expect("a result").elements()
    };
    isas().map(run).collect()
}

/// What follows the sums.
#[derive(Default)]
struct More {
    bias: bool,
    z: bool,
    activation: Option<&'static str>,
    /// Numbers for both.
    addend: Vec<f32>,
    /// What is permitted.
    numerics: u64,
}

impl More {
    fn apply(&self, sums: &mut [f32], channels: usize) {
        for (at, value) in sums.iter_mut().enumerate() {
            if self.bias {
                *value += self.addend[at % channels];
            }
            if self.z {
                *value += self.addend[at];
            }
            match self.activation {
                Some("Relu") => *value = value.max(0.0),
                Some("LeakyRelu") => unreachable!("it has parameters"),
                Some("HardSwish") => *value *= (*value / 6.0 + 0.5).clamp(0.0, 1.0),
                _ => {}
            }
        }
    }
}

/// Sums of small integers, which are exact in any order.
fn integers(chance: &mut Chance, n: usize) -> Vec<f32> {
    (0..n).map(|_| chance.below(17) as f32 - 8.0).collect()
}

#[test]
fn convolutions_are_what_the_definition_says() {
    let mut chance = Chance::new(29);
    for i in 0..240 {
        let rank = 1 + chance.below(3);
        // Each channel by itself, small groups, few large ones.
        let kind = chance.below(3);
        let mut extents = |most: usize| -> Vec<usize> { (0..rank).map(|_| 1 + chance.below(most)).collect() };
        let (mut image, mut kernel) =
            (extents(if rank == 1 { 60 } else { 12 }), extents(if rank == 1 { 40 } else { 4 }));
        if kind == 0 {
            // Long lines are made in parts, of what lies within them and at their ends.
            image[rank - 1] += extents(150)[0];
        }
        let (stride, mut dilation) = (extents(2), extents(2));
        if kind < 2 && chance.below(4) > 0 {
            // Rows that slide.
            (kernel[rank - 1], dilation[rank - 1]) = ([1, 3, 5, 7][chance.below(4)], 1);
        }
        let pad: Vec<usize> = kernel.iter().map(|&kernel| chance.below(kernel)).collect();
        for i in 0..rank {
            image[i] = image[i].max((kernel[i] - 1) * dilation[i] + 1);
        }
        let groups = match kind {
            2 => 1 + chance.below(8) / 6 * chance.below(3),
            _ => 2 + chance.below(40),
        };
        let most = match kind {
            0 => 1,
            1 => 8,
            _ => [4, 20, 70][i % 3],
        };
        let [c_in, c_out] = [0; 2].map(|_| 1 + chance.below(most));
        let case =
            Case { images: 1 + chance.below(2), groups, c_in, c_out, image, kernel, stride, dilation, pad };
        let [n_x, n_w, n_y]: [usize; 3] = case.shapes().map(|extents| extents.iter().product());
        let (x, w) = (integers(&mut chance, n_x), integers(&mut chance, n_w));
        let mut more = More {
            numerics: DEVBAY_NUMERICS_STRICT,
            bias: chance.below(2) == 0,
            z: chance.below(2) == 0,
            activation: [None, Some("Relu"), Some("HardSwish")][chance.below(3)],
            addend: integers(&mut chance, n_y.max(groups * c_out)),
        };
        let mut expected = vec![0.0f32; n_y];
        case.each(|y, x_at, w_at| expected[y] += x_at.map_or(0.0, |at| x[at] * w[w_at]));
        more.apply(&mut expected, groups * c_out);
        // Weights that come with a run, and that are packed before; of bf16, such integers are what they are.
        for (constants, numerics) in
            [(0, DEVBAY_NUMERICS_STRICT), (2, DEVBAY_NUMERICS_STRICT), (2, DEVBAY_NUMERICS_BF16)]
        {
            more.numerics = numerics;
            for found in found(&case, &x, &w, constants, &more) {
                // Sums are exact; 3 x 3 windows of packed weights may be made of fewer products, which round, and some
                // activations round.
                let close = |(found, expected): (&f32, &f32)| {
                    (found - expected).abs() <= 2e-3 * (1.0 + expected.abs())
                };
                let off = found.iter().zip(&expected).position(|pair| !close(pair));
                assert!(off.is_none(), "{i}: {case:?}, element {off:?}");
            }
        }
    }
}

/// What fewer products cost: the largest error, as a share of the sum of the products of the largest number of each channel in a
/// tile and the weights.
const BOUND: f64 = 2e-6;

#[test]
fn fewer_products_stay_within_their_bound() {
    let mut chance = Chance::new(31);
    let mut worst = 0.0f64;
    for [c_in, c_out, height, width] in
        [[16, 16, 8, 8], [64, 64, 14, 14], [33, 40, 9, 17], [128, 24, 12, 6], [256, 32, 16, 16]]
    {
        let case = Case::plane(2, [c_in, c_out], [height, width]);
        let [n_x, n_w, n_y]: [usize; 3] = case.shapes().map(|extents| extents.iter().product());
        let (x, w) = (chance.floats(n_x, 1.0), chance.floats(n_w, 1.0));
        let mut exact = vec![0.0f64; n_y];
        case.each(|y, x_at, w_at| {
            exact[y] += x_at.map_or(0.0, |at| f64::from(x[at]) * f64::from(w[w_at]));
        });
        // All numbers are below 1, so that the sum of the products of the maxima is at most that of the weights.
        let of_maxima: Vec<f64> = (0..c_out)
            .map(|c| w[c * c_in * 9..(c + 1) * c_in * 9].iter().map(|w| f64::from(w.abs())).sum())
            .collect();
        for found in found(&case, &x, &w, 2, &More::default()) {
            for (at, (found, exact)) in found.iter().zip(&exact).enumerate() {
                worst = worst.max((f64::from(*found) - exact).abs() / of_maxima[at % c_out]);
            }
        }
    }
    assert!(worst <= BOUND, "an error of {worst:e}");
}

#[test]
fn rounded_inputs_are_all_that_a_permission_changes() {
    let mut chance = Chance::new(41);
    let one_by_one = |stride: usize| Case {
        kernel: vec![1; 2],
        pad: vec![0; 2],
        stride: vec![stride; 2],
        ..Case::plane(2, [67, 72], [9, 8])
    };
    let strided = Case { stride: vec![2; 2], ..Case::plane(2, [33, 40], [9, 8]) };
    let grouped = Case { groups: 3, ..Case::plane(1, [5, 20], [6, 7]) };
    for case in [one_by_one(1), one_by_one(2), strided, grouped] {
        let [n_x, n_w, n_y]: [usize; 3] = case.shapes().map(|extents| extents.iter().product());
        let (x, w) = (chance.floats(n_x, 1.0), chance.floats(n_w, 1.0));
        let sums = |x: &[f32], w: &[f32]| {
            let mut sums = vec![[0.0f64; 2]; n_y];
            case.each(|y, x_at, w_at| {
                let term = x_at.map_or(0.0, |at| f64::from(x[at]) * f64::from(w[w_at]));
                sums[y] = [sums[y][0] + term, sums[y][1] + term.abs()];
            });
            sums
        };
        let [near_x, near_w] =
            [&x, &w].map(|numbers| numbers.iter().map(|&x| rounded(x)).collect::<Vec<_>>());
        let (exact, near) = (sums(&x, &w), sums(&near_x, &near_w));
        let permitted = More { numerics: DEVBAY_NUMERICS_BF16, ..More::default() };
        let check = |x: &[f32], w: &[f32], more: &More, expected: &[[f64; 2]], bound: f64| {
            for found in found(&case, x, w, 2, more) {
                for (at, (found, [sum, size])) in found.iter().zip(expected).enumerate() {
                    let off = (f64::from(*found) - sum).abs();
                    assert!(off <= bound * size, "{case:?}: {at}: {found} for {sum}, off by {off:e}");
                }
            }
        };
        const SUMS: f64 = 1e-5;
        check(&x, &w, &More::default(), &exact, SUMS);
        // Two inputs, each off by 2^-8 of it at most: half a unit of eight bits.
        check(&x, &w, &permitted, &exact, 1.01 / 128.0 + SUMS);
        // Of numbers that are rounded already, the permission changes nothing.
        check(&near_x, &near_w, &permitted, &near, SUMS);
    }
}

#[test]
fn what_is_not_finite_stays_where_it_is_seen() {
    let mut chance = Chance::new(37);
    // The largest number is bf16's: f32's would be infinite there.
    let largest = f32::from_bits(0x7f7f_0000);
    for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, largest, 1e37] {
        for (in_weights, numerics) in [
            (false, DEVBAY_NUMERICS_STRICT),
            (true, DEVBAY_NUMERICS_STRICT),
            (false, DEVBAY_NUMERICS_BF16),
            (true, DEVBAY_NUMERICS_BF16),
        ] {
            let more = More { numerics, ..More::default() };
            let strided = Case { stride: vec![2; 2], ..Case::plane(2, [33, 32], [12, 13]) };
            let planes = [
                Case::plane(2, [32, 32], [12, 13]),
                strided,
                Case::depthwise(2, 39, [6, 45]),
                Case { dilation: vec![2; 2], ..Case::depthwise(1, 20, [6, 20]) },
                Case { groups: 6, ..Case::plane(1, [4, 4], [6, 21]) },
            ];
            for case in planes {
                let [n_x, n_w, n_y]: [usize; 3] = case.shapes().map(|extents| extents.iter().product());
                let (mut x, mut w) = (integers(&mut chance, n_x), integers(&mut chance, n_w));
                match in_weights {
                    false => x[chance.below(n_x)] = special,
                    true => w[chance.below(n_w)] = special,
                }
                let mut expected = vec![0.0f64; n_y];
                // Padding is multiplied, too: of infinite weights it makes no numbers.
                case.each(|y, x_at, w_at| {
                    expected[y] += f64::from(x_at.map_or(0.0, |at| x[at])) * f64::from(w[w_at]);
                });
                for found in found(&case, &x, &w, 2, &more) {
                    for (at, (&found, &expected)) in found.iter().zip(&expected).enumerate() {
                        let expected = expected as f32;
                        let same = found.is_nan() == expected.is_nan()
                            && (found.is_finite() == expected.is_finite())
                            && (expected.is_nan() || expected.is_finite() || found == expected);
                        let near =
                            !expected.is_finite() || (found - expected).abs() <= 1e-2 + 1e-3 * expected.abs();
                        assert!(
                            same && (near || special.abs() >= 1e37),
                            "{special:e}: {at}: {found} {expected}"
                        );
                    }
                }
            }
        }
    }
}
