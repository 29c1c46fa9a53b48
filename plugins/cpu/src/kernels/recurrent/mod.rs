//! RNN, GRU and LSTM.

pub(super) mod cell;
mod panels;
pub(super) mod rnn;
