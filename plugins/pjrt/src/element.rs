//! PJRT's element types, and the type of an array.

/// A number of `PJRT_Buffer_Type`. Not an enum: a newer library may have more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct ElementType(
    /// The header's number.
    pub i32,
);

macro_rules! element_types {
    ($($name:ident = $number:literal, $bits:literal, $text:literal;)*) => {
        #[allow(missing_docs, reason = "the names are the header's and say it all")]
        impl ElementType {
            $(pub const $name: Self = Self($number);)*
        }

        impl ElementType {
            /// Bits of one element on a device; `None` for a type without elements and for an unknown number.
            pub fn bits(self) -> Option<usize> {
                match self.0 {
                    $($number if $bits != 0 => Some($bits),)*
                    _ => None,
                }
            }

            /// The type as StableHLO's text writes it within `tensor<>`.
            pub fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

element_types! {
    PRED = 1, 8, "i1";
    S8 = 2, 8, "i8";
    S16 = 3, 16, "i16";
    S32 = 4, 32, "i32";
    S64 = 5, 64, "i64";
    U8 = 6, 8, "ui8";
    U16 = 7, 16, "ui16";
    U32 = 8, 32, "ui32";
    U64 = 9, 64, "ui64";
    F16 = 10, 16, "f16";
    F32 = 11, 32, "f32";
    F64 = 12, 64, "f64";
    BF16 = 13, 16, "bf16";
    C64 = 14, 64, "complex<f32>";
    C128 = 15, 128, "complex<f64>";
    F8E5M2 = 16, 8, "f8E5M2";
    F8E4M3FN = 17, 8, "f8E4M3FN";
    F8E4M3B11FNUZ = 18, 8, "f8E4M3B11FNUZ";
    F8E5M2FNUZ = 19, 8, "f8E5M2FNUZ";
    F8E4M3FNUZ = 20, 8, "f8E4M3FNUZ";
    S4 = 21, 4, "i4";
    U4 = 22, 4, "ui4";
    TOKEN = 23, 0, "token";
    S2 = 24, 2, "i2";
    U2 = 25, 2, "ui2";
    F8E4M3 = 26, 8, "f8E4M3";
    F8E3M4 = 27, 8, "f8E3M4";
    F8E8M0FNU = 28, 8, "f8E8M0FNU";
    F4E2M1FN = 29, 4, "f4E2M1FN";
}

impl ElementType {
    /// Bytes of one element; `None` for types of less than a byte, of which host and device have different forms.
    pub fn size_bytes(self) -> Option<usize> {
        self.bits().filter(|bits| bits % 8 == 0).map(|bits| bits / 8)
    }
}

/// The type of an array: what one element is, and how many there are along each dimension.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ArrayType {
    /// One element.
    pub element: ElementType,
    /// Elements along each dimension, the slowest first; empty for a scalar.
    pub dims: Vec<i64>,
}
