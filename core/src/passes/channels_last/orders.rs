//! The choice of orders as a cut of least cost.
//!
//! Some nodes are free to have their images in either order. An image that is made in one order and read in the other pays for
//! one reordering, however many nodes read it so. The network has a vertex for each free node, which stays with the source if
//! its channels come second. For each image there are two more: whether any reader wants its channels last, and whether any
//! wants them second. So the cheapest division of the network is the cheapest choice, exactly.

use crate::min_cut::{End, Network, UNCUTTABLE};

/// The place of the channels among the axes of an image.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Order {
    /// NCHW.
    Second,
    /// NHWC.
    Last,
}

impl Order {
    /// Returns the other order.
    pub fn other(self) -> Self {
        match self {
            Self::Second => Self::Last,
            Self::Last => Self::Second,
        }
    }
}

/// The order in which a node has its images.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Label {
    /// Always this one.
    Fixed(Order),
    /// That of the free node of this number.
    Free(usize),
}

/// A value in either order, as it is made and read.
#[derive(Debug)]
pub struct Image {
    pub maker: Label,
    pub readers: Vec<Label>,
    /// Cost of the other order.
    pub reordering: u64,
}

/// The choice to be made.
#[derive(Default)]
pub struct Choice {
    /// For each free node, the cost of channels second and of channels last.
    pub free: Vec<[u64; 2]>,
    pub images: Vec<Image>,
}

impl Choice {
    /// Returns the order of each free node such that all costs together are least.
    pub fn cheapest(&self) -> Vec<Order> {
        let mut network = Network::new(self.free.len());
        for (node, [second, last]) in self.free.iter().enumerate() {
            network.edge(End::Vertex(node), End::Sink, *second);
            network.edge(End::Source, End::Vertex(node), *last);
        }
        let end = |label: Label| match label {
            Label::Free(node) => End::Vertex(node),
            Label::Fixed(Order::Second) => End::Source,
            Label::Fixed(Order::Last) => End::Sink,
        };
        for image in &self.images {
            let maker = end(image.maker);
            let (wants_last, wants_second) = (network.vertex(), network.vertex());
            network.edge(maker, wants_last, image.reordering);
            network.edge(wants_second, maker, image.reordering);
            for reader in &image.readers {
                network.edge(wants_last, end(*reader), UNCUTTABLE);
                network.edge(end(*reader), wants_second, UNCUTTABLE);
            }
        }
        let mut goes = network.cut();
        goes.truncate(self.free.len());
        goes.into_iter().map(|goes| if goes { Order::Last } else { Order::Second }).collect()
    }

    /// Returns the cost of a choice.
    #[cfg(all(test, not(loom)))]
    pub fn cost(&self, orders: &[Order]) -> u64 {
        let order = |label: &Label| match label {
            Label::Fixed(order) => *order,
            Label::Free(node) => orders[*node],
        };
        let of_nodes = self.free.iter().zip(orders).map(|(costs, order)| costs[*order as usize]);
        let of_images = self.images.iter().map(|image| {
            let is_reordered = image.readers.iter().any(|reader| order(reader) != order(&image.maker));
            u64::from(is_reordered) * image.reordering
        });
        of_nodes.chain(of_images).sum()
    }
}

/// All choices of `n` orders.
#[cfg(all(test, not(loom)))]
pub fn all_choices(n: usize) -> impl Iterator<Item = Vec<Order>> {
    let order = |bit: usize| if bit == 0 { Order::Second } else { Order::Last };
    (0..1usize << n).map(move |bits| (0..n).map(|i| order(bits >> i & 1)).collect())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const N_FREE: usize = 5;

    fn label() -> impl Strategy<Value = Label> {
        prop_oneof![
            Just(Label::Fixed(Order::Second)),
            Just(Label::Fixed(Order::Last)),
            (0..N_FREE).prop_map(Label::Free),
            (0..N_FREE).prop_map(Label::Free),
        ]
    }

    fn image() -> impl Strategy<Value = Image> {
        let parts = (label(), vec(label(), 0..4), 0..9u64);
        parts.prop_map(|(maker, readers, reordering)| Image { maker, readers, reordering })
    }

    proptest! {
        #[test]
        fn no_choice_is_cheaper(
            free in vec((0..9u64, 0..9u64).prop_map(|(second, last)| [second, last]), N_FREE),
            images in vec(image(), 0..8),
        ) {
            let choice = Choice { free, images };
            let least = all_choices(N_FREE).map(|orders| choice.cost(&orders)).min();
            prop_assert_eq!(Some(choice.cost(&choice.cheapest())), least);
        }
    }
}
