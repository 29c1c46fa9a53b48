//! `devbay man --out FOLDER`: writes a manual page for devbay and for each of its commands.
//!
//! Hidden, as [`crate::completions`] is. The pages are made from the same definitions as the help.

use crate::completions::shown;
use crate::{command_line, say};
use anyhow::{Context, Result};
use devbay_host::internals::core::units::count;
use devbay_host::internals::file::write_bytes;
use std::path::{Path, PathBuf};

/// Arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// Folder for the pages, made if it does not exist
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
}

/// Writes the pages: `devbay.1`, and `devbay-COMMAND.1` for each command.
///
/// # Errors
/// For files that cannot be written.
pub fn main(arguments: &Arguments) -> Result<()> {
    let folder = &arguments.out;
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let mut command = shown(command_line());
    // Gives options that all commands share to each of them, and names such as `devbay-run`.
    command.build();
    write(folder, "devbay", &command)?;
    let mut n_pages = 1;
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        let name = format!("devbay-{}", sub.get_name());
        write(folder, &name, &sub.clone().name(name.clone()))?;
        n_pages += 1;
    }
    say!("{} written to {}", count(n_pages, "page"), folder.display());
    Ok(())
}

fn write(folder: &Path, name: &str, command: &clap::Command) -> Result<()> {
    let path = folder.join(format!("{name}.1"));
    let mut page = Vec::new();
    let date_free = clap_mangen::Man::new(command.clone()).date("");
    date_free.render(&mut page).with_context(|| format!("cannot make the page {name}"))?;
    write_bytes(&path, &page).with_context(|| format!("cannot write {}", path.display()))
}
