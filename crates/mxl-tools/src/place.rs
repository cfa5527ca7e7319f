//! The domain and the flows that a program was given.

use std::path::{Path, PathBuf};

use mxl::{Domain, Uri, Uuid};

use crate::failure::{Failure, Result};

/// The domain and flows that a command line names, by options or by a URI.
#[derive(Debug)]
pub struct Place {
    /// The domain's directory.
    pub domain: PathBuf,
    /// The flows' ids, in their order.
    pub flows: Vec<Uuid>,
}

impl Place {
    /// The domain and flows of the options. A URI takes precedence, as in the C++ SDK's programs.
    ///
    /// # Errors
    /// [`Failure::Usage`] for neither, and for a URI of another host.
    pub fn of(domain: Option<&Path>, flow: Option<Uuid>, uri: Option<&Uri>) -> Result<Self> {
        if let Some(uri) = uri {
            if let Some(authority) = &uri.authority {
                let text = format!("{uri}: the flows of host {authority} cannot be shown from here");
                return Err(Failure::Usage(format!("{text}; run the program there, with mxl:///PATH")));
            }
            let flows = if uri.flows.is_empty() { flow.into_iter().collect() } else { uri.flows.clone() };
            return Ok(Self { domain: uri.domain.clone(), flows });
        }
        let domain = domain.ok_or_else(|| Failure::Usage("no domain: give --domain, or a URI".into()))?;
        Ok(Self { domain: domain.into(), flows: flow.into_iter().collect() })
    }

    /// The only flow.
    ///
    /// # Errors
    /// [`Failure::Usage`] for none, or several.
    pub fn flow(&self) -> Result<Uuid> {
        match self.flows[..] {
            [flow] => Ok(flow),
            [] => Err(Failure::Usage("no flow: give --flow, or a URI with ?id=".into())),
            _ => Err(Failure::Usage(format!("the URI names {} flows; name one", self.flows.len()))),
        }
    }
}

/// Opens a domain, and warns on standard error of one on a disk: the library only logs that, and the programs have no
/// log.
///
/// # Errors
/// Those of [`Domain::open`].
pub fn open(program: &str, path: &Path) -> Result<Domain> {
    let domain = Domain::open(path)?;
    if let Ok(false) = mxl::is_tmpfs(domain.path()) {
        eprintln!("{program}: {} is not on a tmpfs: pictures may go to a disk", path.display());
    }
    Ok(domain)
}
