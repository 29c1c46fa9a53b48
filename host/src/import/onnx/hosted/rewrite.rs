//! Nodes that are replaced, so that devices run what they can of them.
//!
//! - An op that only moves or compares strings runs on their codes ([`codes`]).
//! - A vectorizer's or an encoder's list of strings becomes a list of integers, behind a LabelEncoder of the operand.
//! - A classifier's labels become integers, before a LabelEncoder of the result.

use super::super::proto::attribute_proto::AttributeType;
use super::super::proto::{AttributeProto, NodeProto};
use super::super::{domain, invalid};
use super::Importer;
use super::survey::Names;
use crate::values::Element;
use crate::values::ops::{ML, OWN, codes};
use devbay_core::Result;
use std::collections::HashMap;

/// Ops whose list of strings is what their operand is compared with: the attributes of strings and of integers.
const VOCABULARIES: &[(&str, &str, &str)] =
    &[("TfIdfVectorizer", "pool_strings", "pool_int64s"), ("OneHotEncoder", "cats_strings", "cats_int64s")];

/// Classifiers: the attributes of labels as strings and as integers.
const CLASSIFIERS: &[(&str, &str, &str)] = &[
    ("LinearClassifier", "classlabels_strings", "classlabels_ints"),
    ("SVMClassifier", "classlabels_strings", "classlabels_ints"),
    ("TreeEnsembleClassifier", "classlabels_strings", "classlabels_int64s"),
];

/// Returns whether an attribute of these ops holds labels, and not words such as the name of a mode.
pub fn holds_labels(attribute: &str) -> bool {
    attribute.ends_with("_strings") || matches!(attribute, "classes_strings" | "string_vocabulary")
}

/// Returns a node with operands and results by name.
pub fn node(domain: &str, op: &str, inputs: Vec<String>, outputs: Vec<String>) -> NodeProto {
    NodeProto {
        op_type: Some(op.to_owned()),
        domain: Some(domain.to_owned()),
        input: inputs,
        output: outputs,
        ..NodeProto::default()
    }
}

fn strings(name: &str, strings: Vec<Vec<u8>>) -> AttributeProto {
    AttributeProto {
        name: Some(name.to_owned()),
        r#type: Some(AttributeType::Strings as i32),
        strings,
        ..AttributeProto::default()
    }
}

fn ints(name: &str, ints: Vec<i64>) -> AttributeProto {
    AttributeProto {
        name: Some(name.to_owned()),
        r#type: Some(AttributeType::Ints as i32),
        ints,
        ..AttributeProto::default()
    }
}

impl Importer<'_> {
    /// Returns the nodes in place of one. A node that stays is the only one.
    pub fn rewritten(&mut self, node: &NodeProto, names: &Names<'_>) -> Result<Vec<NodeProto>> {
        let (domain, op) = (domain(node.domain()), node.op_type());
        if let Some(coded) = codes::find(domain, op) {
            return Ok(self.on_codes(node, coded, names));
        }
        let entry = |table: &'static [(&str, &str, &str)]| {
            let mut entries = table.iter().filter(|(name, ..)| *name == op);
            entries.next().filter(|_| domain == ML || op == "TfIdfVectorizer")
        };
        if let Some((_, texts, numbers)) = entry(VOCABULARIES) {
            return self.with_vocabulary(node, texts, numbers);
        }
        if let Some((_, texts, numbers)) = entry(CLASSIFIERS) {
            return self.with_labels(node, texts, numbers);
        }
        Ok(vec![node.clone()])
    }

    /// Puts Encode before a node that moves or compares strings, and Decode behind it.
    fn on_codes(&mut self, proto: &NodeProto, coded: &codes::Coded, names: &Names<'_>) -> Vec<NodeProto> {
        let is_strings = |name: &str| names.element(name) == Some(Element::String);
        let coded_at: Vec<usize> = (0..proto.input.len())
            .filter(|&i| (coded.takes)(i) && !proto.input[i].is_empty() && is_strings(&proto.input[i]))
            .collect();
        if coded_at.is_empty() {
            return vec![proto.clone()];
        }
        let mut moved = proto.clone();
        let table = self.fresh(&proto.input[coded_at[0]]);
        let mut encoded = vec![table.clone()];
        for &i in &coded_at {
            moved.input[i] = self.fresh(&proto.input[i]);
            encoded.push(moved.input[i].clone());
        }
        let operands = coded_at.iter().map(|&i| proto.input[i].clone()).collect();
        let mut nodes = vec![node(OWN, "Encode", operands, encoded)];
        let mut decodes = Vec::new();
        for (j, result) in moved.output.iter_mut().enumerate() {
            if (coded.gives)(j) && !result.is_empty() {
                let codes = self.fresh(result);
                let name = std::mem::replace(result, codes.clone());
                decodes.push(node(OWN, "Decode", vec![codes, table.clone()], vec![name]));
            }
        }
        nodes.push(moved);
        nodes.extend(decodes);
        nodes
    }

    /// Replaces a list of strings by integers: the positions at which the strings are in it first.
    fn with_vocabulary(&mut self, proto: &NodeProto, texts: &str, numbers: &str) -> Result<Vec<NodeProto>> {
        let list = proto
            .attribute
            .iter()
            .find(|attribute| attribute.name() == texts && !attribute.strings.is_empty());
        let Some(list) = list else { return Ok(vec![proto.clone()]) };
        let operand = proto.input.first().filter(|name| !name.is_empty());
        let operand = operand.ok_or_else(|| invalid("expected an operand of strings, found none"))?;
        let mut known: HashMap<&[u8], i64> = HashMap::new();
        let mut keys = Vec::new();
        let mut pool = Vec::with_capacity(list.strings.len());
        for text in &list.strings {
            let next = known.len() as i64;
            let number = *known.entry(text).or_insert(next);
            if number == next {
                keys.push(text.clone());
            }
            pool.push(number);
        }
        let encoded = self.fresh(operand);
        let mut encoder = node(OWN, "LabelEncoder", vec![operand.clone()], vec![encoded.clone()]);
        let values = (0..keys.len() as i64).collect();
        encoder.attribute = vec![strings("keys_strings", keys), ints("values_int64s", values)];
        let mut on_numbers = proto.clone();
        on_numbers.input[0] = encoded;
        on_numbers.attribute.retain(|attribute| attribute.name() != texts && attribute.name() != numbers);
        on_numbers.attribute.push(ints(numbers, pool));
        Ok(vec![encoder, on_numbers])
    }

    /// Replaces a classifier's labels by their positions, and those by the labels behind it.
    fn with_labels(&mut self, proto: &NodeProto, texts: &str, numbers: &str) -> Result<Vec<NodeProto>> {
        let list = proto
            .attribute
            .iter()
            .find(|attribute| attribute.name() == texts && !attribute.strings.is_empty());
        let Some(list) = list else { return Ok(vec![proto.clone()]) };
        let positions: Vec<i64> = (0..list.strings.len() as i64).collect();
        let mut classifier = proto.clone();
        classifier.attribute.retain(|attribute| attribute.name() != texts && attribute.name() != numbers);
        classifier.attribute.push(ints(numbers, positions.clone()));
        let Some(label) = classifier.output.first_mut().filter(|name| !name.is_empty()) else {
            return Ok(vec![classifier]);
        };
        let position = self.fresh(label);
        let label = std::mem::replace(label, position.clone());
        let mut decoder = node(OWN, "LabelEncoder", vec![position], vec![label]);
        decoder.attribute =
            vec![ints("keys_int64s", positions), strings("values_strings", list.strings.clone())];
        Ok(vec![classifier, decoder])
    }
}
