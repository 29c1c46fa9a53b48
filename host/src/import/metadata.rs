//! Metadata of a model: statements of its file about itself, which do not change its results.

/// Metadata of a model. A program in text form and a compiled model have only the graph's name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Metadata {
    /// Tool that made the model.
    pub producer_name: String,
    /// Version of that tool.
    pub producer_version: String,
    /// Domain of the model, in reverse notation.
    pub domain: String,
    /// Version of the model; 0 if it has none.
    pub version: i64,
    /// Description of the model.
    pub description: String,
    /// Name of the graph.
    pub graph_name: String,
    /// Description of the graph.
    pub graph_description: String,
    /// Version of ONNX's file format.
    pub ir_version: i64,
    /// Opsets: domain, empty for ONNX's own, and version.
    pub opsets: Vec<(String, i64)>,
    /// Pairs of key and value that the producer added, in the order of the file.
    pub properties: Vec<(String, String)>,
}
