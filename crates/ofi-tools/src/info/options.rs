//! The command line of `fi_info`. Short and long names are C's.

use clap::{ArgAction, Parser};
use ofi::raw::{Hints, Mode, MrMode};

use super::names;
use crate::failure::Failure;

/// List what this host offers to programs on libfabric's interface
#[derive(Debug, Parser)]
#[command(name = "fi_info", disable_version_flag = true, infer_long_args = true)]
pub struct Options {
    /// Local name or address to start from
    #[arg(short = 's', long = "src_addr", alias = "src-addr", value_name = "ADDR", conflicts_with = "node")]
    src_addr: Option<String>,
    /// Name or address of the host to reach
    #[arg(short = 'n', long, value_name = "NAME")]
    node: Option<String>,
    /// Port number or service name
    #[arg(short = 'P', long, value_name = "PNUM")]
    port: Option<String>,
    /// Required capabilities: FI_MSG|FI_RMA...
    #[arg(short = 'c', long, value_name = "CAP1|CAP2..")]
    caps: Option<String>,
    /// Modes that the program supports [default: all]
    #[arg(short = 'm', long, value_name = "MOD1|MOD2..")]
    mode: Option<String>,
    /// Endpoint type: FI_EP_RDM, FI_EP_MSG or FI_EP_DGRAM
    #[arg(short = 't', long = "ep_type", alias = "ep-type", value_name = "EPTYPE")]
    ep_type: Option<String>,
    /// Domain name
    #[arg(short = 'd', long, value_name = "DOMAIN")]
    domain: Option<String>,
    /// Fabric name
    #[arg(short = 'f', long, value_name = "FABRIC")]
    fabric: Option<String>,
    /// Address format: FI_ADDR_STR, FI_SOCKADDR_IN...
    #[arg(short = 'a', long = "addr_format", alias = "addr-format", value_name = "FMT")]
    addr_format: Option<String>,
    /// Provider name
    #[arg(short = 'p', long, value_name = "PROV")]
    provider: Option<String>,
    /// Show the settings: environment variables and their values
    #[arg(short = 'e', long)]
    env: bool,
    /// As -e, but only variables whose name contains SUBSTR
    #[arg(short = 'g', long = "getenv", value_name = "SUBSTR")]
    getenv: Option<String>,
    /// As -v, but only interfaces whose text contains SUBSTR
    #[arg(short = 'i', long = "info", value_name = "SUBSTR")]
    info: Option<String>,
    /// List providers and their versions
    #[arg(short = 'l', long)]
    list: bool,
    /// Show every attribute
    #[arg(short = 'v', long)]
    verbose: bool,
    /// Also show refusals: the provider, the field, the wanted value and the offered one
    #[arg(long)]
    pub explain: bool,
    /// Write JSON
    #[arg(long)]
    pub json: bool,
    /// Show versions
    #[arg(long, action = ArgAction::SetTrue)]
    version: bool,
}

/// The kind of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show<'a> {
    /// Versions of the program and the interface.
    Version,
    /// Settings, all or those whose name contains a text.
    Settings(Option<&'a str>),
    /// Providers.
    Providers,
    /// Interfaces with every attribute, all or those whose text contains a text.
    Long(Option<&'a str>),
    /// A few lines for each interface.
    Short,
}

impl Options {
    /// The kind of output. If several options request one, C's order of precedence applies.
    pub fn show(&self) -> Show<'_> {
        if self.version {
            Show::Version
        } else if self.env || self.getenv.is_some() {
            Show::Settings(self.getenv.as_deref())
        } else if self.verbose || self.info.is_some() {
            Show::Long(self.info.as_deref())
        } else if self.list {
            Show::Providers
        } else {
            Show::Short
        }
    }

    /// The host name and the port, and whether the host is the local side.
    pub fn node(&self) -> (Option<&str>, Option<&str>, bool) {
        let source = self.src_addr.is_some();
        (self.src_addr.as_deref().or(self.node.as_deref()), self.port.as_deref(), source)
    }

    /// The hints: `None` unless an option sets one; otherwise with any mode and any kind of registration.
    ///
    /// # Errors
    /// A name that is not in the C headers.
    pub fn hints(&self) -> Result<Option<Hints>, Failure> {
        let mut hints = Hints::new().mode(Mode::all()).mr_mode(MrMode::all() - MrMode::DEPRECATED);
        hints.info.domain_attr.mode = Mode::all();
        let mut used = false;
        if let Some(text) = &self.caps {
            (hints.info.caps, used) = (names::caps(text)?, true);
        }
        if let Some(text) = &self.mode {
            (hints.info.mode, used) = (names::modes(text)?, true);
        }
        if let Some(text) = &self.ep_type {
            (hints.info.ep_attr.ep_type, used) = (names::ep_type(text)?, true);
        }
        if let Some(text) = &self.addr_format {
            (hints.info.addr_format, used) = (names::addr_format(text)?, true);
        }
        if let Some(name) = &self.provider {
            (hints.info.fabric_attr.prov_name, used) = (name.clone(), true);
        }
        if let Some(name) = &self.domain {
            (hints.info.domain_attr.name, used) = (name.clone(), true);
        }
        if let Some(name) = &self.fabric {
            (hints.info.fabric_attr.name, used) = (name.clone(), true);
        }
        Ok(used.then_some(hints))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ofi::raw::{Caps, EpType};

    fn parse(line: &str) -> Options {
        Options::try_parse_from(std::iter::once("fi_info").chain(line.split_whitespace())).unwrap()
    }

    #[test]
    fn no_filter_is_no_hints() {
        assert_eq!(parse("-v -n localhost -P 7471").hints().unwrap(), None);
        assert_eq!(parse("-n localhost -P 7471").node(), (Some("localhost"), Some("7471"), false));
        assert_eq!(parse("-s localhost").node(), (Some("localhost"), None, true));
    }

    #[test]
    fn a_filter_leaves_the_rest_open() {
        let hints = parse("-c FI_MSG|fi_rma --ep_type FI_EP_RDM").hints().unwrap().unwrap();
        assert_eq!((hints.info.caps, hints.info.ep_attr.ep_type), (Caps::MSG | Caps::RMA, EpType::Rdm));
        assert_eq!(hints.info.mode, Mode::all());
        assert!(!hints.info.domain_attr.mr_mode.intersects(MrMode::DEPRECATED));
    }

    #[test]
    fn settings_come_before_interfaces() {
        assert_eq!(parse("-l -v -g shm").show(), Show::Settings(Some("shm")));
        assert_eq!(parse("-l -v").show(), Show::Long(None));
        assert_eq!(parse("--verb").show(), Show::Long(None));
        assert_eq!(parse("").show(), Show::Short);
    }
}
