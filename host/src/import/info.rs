//! Facts that a model's file states about itself: its producer, its versions, and notes of its author.
//!
//! Nothing here affects how a model runs: the importer reads opsets from the file itself, and everything else is for people
//! and tools. Texts are as in the file, and may hold any characters.

use super::onnx::proto::ModelProto;

/// Format of a model's file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum ModelFormat {
    /// No file: a program that the application made.
    #[default]
    Program,
    /// An ONNX model.
    Onnx,
    /// A program in text form.
    Text,
    /// A compiled model, `.dbx`.
    Compiled,
}

impl ModelFormat {
    /// Returns its name, for messages and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Program => "program",
            Self::Onnx => "onnx",
            Self::Text => "text",
            Self::Compiled => "dbx",
        }
    }
}

/// Facts that a model's file states about itself. Only ONNX files have more than a format and, if devbay wrote them, a
/// producer; texts that a file does not have are empty.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ModelInfo {
    /// Format of the file.
    pub format: ModelFormat,
    /// Version of ONNX's file format.
    pub ir_version: Option<i64>,
    /// Imported opsets by domain, in the file's order; the domain of ONNX's own ops is empty.
    pub opsets: Vec<(String, i64)>,
    /// Name of the tool that wrote the model.
    pub producer_name: String,
    /// Version of that tool.
    pub producer_version: String,
    /// Domain of the model, such as a reversed name of a company.
    pub domain: String,
    /// Version of the model itself.
    pub model_version: Option<i64>,
    /// Description of the model.
    pub description: String,
    /// Name of the graph.
    pub graph_name: String,
    /// Description of the graph.
    pub graph_description: String,
    /// Further notes by name (`metadata_props`), in the file's order.
    pub metadata: Vec<(String, String)>,
}

impl ModelInfo {
    /// Returns the facts of a file that has no more than a format.
    pub(crate) fn of(format: ModelFormat) -> Self {
        Self { format, ..Self::default() }
    }

    /// Returns the facts of a compiled model, from the version of devbay that wrote it.
    pub(crate) fn of_compiled(made_by: &str) -> Self {
        Self {
            producer_name: "devbay".to_owned(),
            producer_version: made_by.to_owned(),
            ..Self::of(ModelFormat::Compiled)
        }
    }

    /// Moves the facts out of a decoded ONNX model, so that its texts are in memory once. Its opsets stay, for the import.
    pub(super) fn take(model: &mut ModelProto) -> Self {
        let opset = |import: &super::onnx::proto::OperatorSetIdProto| {
            (super::onnx::domain(import.domain()).to_owned(), import.version())
        };
        let metadata = std::mem::take(&mut model.metadata_props).into_iter();
        Self {
            format: ModelFormat::Onnx,
            ir_version: model.ir_version,
            opsets: model.opset_import.iter().map(opset).collect(),
            producer_name: model.producer_name.take().unwrap_or_default(),
            producer_version: model.producer_version.take().unwrap_or_default(),
            domain: model.domain.take().unwrap_or_default(),
            model_version: model.model_version,
            description: model.doc_string.take().unwrap_or_default(),
            graph_name: model.graph.as_ref().map(|graph| graph.name().to_owned()).unwrap_or_default(),
            graph_description: model
                .graph
                .as_mut()
                .and_then(|graph| graph.doc_string.take())
                .unwrap_or_default(),
            metadata: metadata
                .map(|entry| (entry.key.unwrap_or_default(), entry.value.unwrap_or_default()))
                .collect(),
        }
    }
}
