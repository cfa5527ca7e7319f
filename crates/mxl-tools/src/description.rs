//! `domain_def.json`: the owner's description of a domain. The C++ SDK defines only its three texts.

use std::fmt;
use std::io;
use std::path::Path;

use serde_json::{Map, Value};

use crate::failure::{Failure, Result};

/// The definition of a domain.
#[derive(Debug, PartialEq)]
pub struct Description(Map<String, Value>);

impl Description {
    /// The definition of the domain in a directory. `None` if it has none.
    ///
    /// # Errors
    /// [`Failure::Usage`] for a file that is no JSON object; an error of the system.
    pub fn of(domain: &Path) -> Result<Option<Self>> {
        let path = domain.join("domain_def.json");
        let text = match read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Failure::system(format!("read {}", path.display()))(error)),
        };
        let found =
            |what: String| Failure::Usage(format!("{}: {what}; correct or remove it", path.display()));
        match serde_json::from_slice(&text) {
            Ok(Value::Object(object)) => Ok(Some(Self(object))),
            Ok(_) => Err(found("a JSON object was wanted, and another value found".into())),
            Err(error) => Err(found(format!("a JSON object was wanted: {error}"))),
        }
    }
}

/// Reads a file. Anything but a regular file, such as a FIFO, is an error and does not block.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "is not a file"));
    }
    std::fs::read(path)
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:>12}", "domain")?;
        for name in ["id", "label", "description"] {
            let text = match self.0.get(name) {
                Some(Value::String(text)) => text.as_str(),
                Some(_) => "(not a text)",
                None => "(missing)",
            };
            writeln!(f, "{name:>12}  {}", mxl::visible(text))?;
        }
        Ok(())
    }
}
