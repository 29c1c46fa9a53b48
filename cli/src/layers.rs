//! `--layers`: the layers between the host and its plugins, and the report of their findings.
//!
//! Some rules concern the end: resources that must be returned, and their order. So violations are read, and JSON is
//! printed, after session and runtime are gone.

use crate::{failure, say, tell};
use anyhow::Result;
use clap::Args;
use devbay_host::internals::layers;
use devbay_host::internals::layers::validation::{Report, Side};
use devbay_host::{Error, ErrorKind};
use serde_json::{Value, json};

/// Layers, and their findings.
#[derive(Args, Clone)]
pub struct LayerArguments {
    /// Insert layers between the host and its plugins, the first one nearest to the host: `validation`, or libraries by path
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    layers: Option<Vec<String>>,
    #[arg(skip)]
    pub report: Report,
}

/// Outcome of a command.
pub struct Done {
    /// Its result, if to be printed as JSON.
    pub json: Option<Value>,
    /// Its success or failure.
    pub verdict: Result<()>,
}

impl Done {
    /// Returns the outcome of a command that has printed its result.
    pub fn printed() -> Self {
        Self { json: None, verdict: Ok(()) }
    }

    /// Returns a successful outcome with a result.
    pub fn json(value: Value) -> Self {
        Self { json: Some(value), verdict: Ok(()) }
    }
}

impl LayerArguments {
    /// Returns the names of layers: those of the option, else those of the environment.
    pub fn names(&self) -> Vec<String> {
        self.layers.clone().unwrap_or_else(layers::from_environment)
    }

    /// Ends a command whose session and runtime are gone: prints its JSON and the findings of layers.
    ///
    /// # Errors
    /// The command's own error. If a rule was broken, an error that names the plugin; the command's own is printed before.
    pub fn conclude(&self, outcome: Result<Done>) -> Result<()> {
        let violations = self.report.violations();
        let result = outcome.and_then(|outcome| {
            if let Some(mut value) = outcome.json {
                value["violations"] = if self.names().is_empty() { Value::Null } else { json!(violations) };
                say!("{}", serde_json::to_string_pretty(&value)?);
            }
            outcome.verdict
        });
        for violation in &violations {
            tell!("violation: {violation}");
        }
        if violations.is_empty() {
            return result;
        }
        if let Err(error) = result {
            failure::report(&error);
        }
        let n_by = |side| violations.iter().filter(|violation| violation.by == side).count();
        let text = format!(
            "rules of the plugin ABI were broken: {} by the host, {} by plugins",
            n_by(Side::Host),
            n_by(Side::Plugin)
        );
        Err(Error::new(ErrorKind::PluginBroken, text).into())
    }
}
