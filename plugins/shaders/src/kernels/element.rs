//! Elements in a shader's memory, which is words of 32 bits: narrow ones are packed, 64-bit ones are pairs.

use crate::step::{Body, turns};
use crate::template::wgsl;
use devbay_plugin_api::sdk::*;

/// Layout of elements in memory, whatever they mean.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Width {
    /// Four to a word.
    B1,
    /// Two to a word.
    B2,
    /// A word.
    B4,
    /// Two words, low bits first.
    B8,
}

impl Width {
    /// Of a dtype; None for what is packed more closely or is no number of this plugin's.
    pub fn of(dtype: DType) -> Option<Self> {
        match dtype.bits {
            8 => Some(Self::B1),
            16 => Some(Self::B2),
            32 => Some(Self::B4),
            64 => Some(Self::B8),
            _ => None,
        }
    }

    /// Elements of a word of the type [`Width::storage`]; 1 for pairs.
    pub fn per_word(self) -> u32 {
        match self {
            Self::B1 => 4,
            Self::B2 => 2,
            Self::B4 | Self::B8 => 1,
        }
    }

    /// The WGSL type of the buffer's elements.
    pub fn storage(self) -> &'static str {
        match self {
            Self::B8 => "vec2<u32>",
            _ => "u32",
        }
    }

    /// WGSL expression for the bits of the element at `at` (u32) of a buffer: u32, or `vec2<u32>` for pairs.
    pub fn load(self, buffer: &str, at: &str) -> String {
        match self {
            Self::B1 => format!("(({buffer}[({at}) >> 2u] >> ((({at}) & 3u) * 8u)) & 0xffu)"),
            Self::B2 => format!("(({buffer}[({at}) >> 1u] >> ((({at}) & 1u) * 16u)) & 0xffffu)"),
            Self::B4 | Self::B8 => format!("{buffer}[{at}]"),
        }
    }

    /// Items of a step that makes `n` elements: a thread makes a whole word.
    pub fn items(self, n: u64) -> u64 {
        n.div_ceil(u64::from(self.per_word()))
    }

    /// WGSL for [`Body::Items`] that makes the elements of `buffer`: `code` sets `v`, declared here as `u32` or
    /// `vec2<u32>` of zeros, from the element's position `e`. Elements from the parameter `n` on are not made where a
    /// word has room for more.
    pub fn each(self, buffer: &str, code: &str) -> String {
        let zero = if self == Self::B8 { "vec2<u32>()" } else { "0u" };
        if self.per_word() == 1 {
            return format!("let e = i;\nvar v = {zero};\n{code}\n{buffer}[i] = v;\n");
        }
        let (lanes, bits) = (self.per_word(), 32 / self.per_word());
        wgsl!("element/words.wgsl", buffer, lanes, bits, mask = (1u64 << bits) - 1, code)
    }

    /// Turns of loops of [`Width::each`] whose code has so many for an element.
    pub fn turns(self, of_element: u64) -> u64 {
        if self.per_word() == 1 { of_element } else { turns(u64::from(self.per_word()), of_element) }
    }

    /// As [`Width::each`], as a step's body over `n` elements; the parameter `n` has to be among the step's.
    pub fn body<'a>(self, n: u64, functions: &'a str, each: &'a str) -> Body<'a> {
        Body::Items { n: self.items(n), functions, each }
    }
}
