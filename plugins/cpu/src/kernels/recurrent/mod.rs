//! RNN, GRU and LSTM.

pub(super) mod cell;
pub(super) mod rnn;
