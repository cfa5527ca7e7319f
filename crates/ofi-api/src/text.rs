//! The text form of flag sets and infos, as `fi_tostr` and `fi_info -v` print them, so that scripts can read either.
//!
//! A flag set prints as `FI_MSG, FI_RMA`; bits without a name are added as one hexadecimal number. An info prints as
//! YAML. The NUMA node of a device, which C lacks, is printed only if known.

use crate::{
    BindFlags, BusAttr, Caps, CompletionFlags, DomainAttr, EpAttr, FabricAttr, GetinfoFlags, Info, Mode,
    MrAccess, MrMode, MsgOrder, Nic, OpFlags, RxAttr, SHARED_CONTEXT, TxAttr,
};
use std::fmt::{self, Display, Formatter, Write as _};

macro_rules! display_as {
    ($($type:ident: $prefix:literal;)+) => {
        $(impl Display for $type {
            /// C's names, separated by `, `.
            fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
                let mut rest = self.iter_names();
                let mut separator = "";
                for (name, _) in rest.by_ref() {
                    write!(f, concat!("{}", $prefix, "{}"), separator, name)?;
                    separator = ", ";
                }
                match rest.remaining().bits() {
                    0 => Ok(()),
                    unknown => write!(f, "{separator}{unknown:#x}"),
                }
            }
        })+
    };
}

display_as! {
    Caps: "FI_";
    OpFlags: "FI_";
    CompletionFlags: "FI_";
    BindFlags: "FI_";
    Mode: "FI_";
    MrMode: "FI_MR_";
    MsgOrder: "FI_ORDER_";
    MrAccess: "FI_";
    GetinfoFlags: "FI_";
}

impl Display for Info {
    /// The whole info, one field to a line.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut out = Yaml { f, indent: 0 };
        out.section("fi_info", |out| {
            out.set("caps", self.caps)?;
            out.set("mode", self.mode)?;
            out.field("addr_format", self.addr_format)?;
            for (name, address) in [("src_addrlen", &self.src_addr), ("dest_addrlen", &self.dest_addr)] {
                out.field(name, address.as_ref().map_or(0, |address| address.bytes().len()))?;
            }
            for (name, address) in [("src_addr", &self.src_addr), ("dest_addr", &self.dest_addr)] {
                match address {
                    Some(address) => out.field(name, address)?,
                    None => out.field(name, "(null)")?,
                }
            }
            out.handle("handle", self.handle.as_ref())?;
            tx_attr(out, &self.tx_attr)?;
            rx_attr(out, &self.rx_attr)?;
            ep_attr(out, &self.ep_attr)?;
            domain_attr(out, &self.domain_attr)?;
            fabric_attr(out, &self.fabric_attr)?;
            match &self.nic {
                Some(nic) => nic_attr(out, nic),
                None => out.field("nic", "(nil)"),
            }
        })
    }
}

fn tx_attr(out: &mut Yaml<'_, '_>, attr: &TxAttr) -> fmt::Result {
    out.section("fi_tx_attr", |out| {
        out.set("caps", attr.caps)?;
        out.set("mode", attr.mode)?;
        out.set("op_flags", attr.op_flags)?;
        out.set("msg_order", attr.msg_order)?;
        out.field("inject_size", attr.inject_size)?;
        out.field("size", attr.size)?;
        out.field("iov_limit", attr.iov_limit)?;
        out.field("rma_iov_limit", attr.rma_iov_limit)?;
        out.field("tclass", attr.tclass)
    })
}

fn rx_attr(out: &mut Yaml<'_, '_>, attr: &RxAttr) -> fmt::Result {
    out.section("fi_rx_attr", |out| {
        out.set("caps", attr.caps)?;
        out.set("mode", attr.mode)?;
        out.set("op_flags", attr.op_flags)?;
        out.set("msg_order", attr.msg_order)?;
        out.field("size", attr.size)?;
        out.field("iov_limit", attr.iov_limit)
    })
}

fn ep_attr(out: &mut Yaml<'_, '_>, attr: &EpAttr) -> fmt::Result {
    out.section("fi_ep_attr", |out| {
        out.field("type", attr.ep_type)?;
        out.field("protocol", attr.protocol)?;
        out.field("protocol_version", attr.protocol_version)?;
        out.field("max_msg_size", attr.max_msg_size)?;
        out.field("msg_prefix_size", attr.msg_prefix_size)?;
        out.field("max_order_raw_size", attr.max_order_raw_size)?;
        out.field("max_order_war_size", attr.max_order_war_size)?;
        out.field("max_order_waw_size", attr.max_order_waw_size)?;
        out.field("mem_tag_format", format_args!("{:#018x}", attr.mem_tag_format))?;
        for (name, count) in [("tx_ctx_cnt", attr.tx_ctx_cnt), ("rx_ctx_cnt", attr.rx_ctx_cnt)] {
            match count {
                SHARED_CONTEXT => out.field(name, "FI_SHARED_CONTEXT")?,
                count => out.field(name, count)?,
            }
        }
        out.field("auth_key_size", attr.auth_key_size)
    })
}

fn domain_attr(out: &mut Yaml<'_, '_>, attr: &DomainAttr) -> fmt::Result {
    out.section("fi_domain_attr", |out| {
        out.handle("domain", attr.domain.as_ref())?;
        out.name("name", &attr.name)?;
        out.field("threading", attr.threading)?;
        out.field("progress", attr.progress)?;
        out.field("resource_mgmt", attr.resource_mgmt)?;
        out.field("av_type", attr.av_type)?;
        out.set("mr_mode", attr.mr_mode)?;
        out.field("mr_key_size", attr.mr_key_size)?;
        out.field("cq_data_size", attr.cq_data_size)?;
        out.field("cq_cnt", attr.cq_cnt)?;
        out.field("ep_cnt", attr.ep_cnt)?;
        out.field("tx_ctx_cnt", attr.tx_ctx_cnt)?;
        out.field("rx_ctx_cnt", attr.rx_ctx_cnt)?;
        out.field("max_ep_tx_ctx", attr.max_ep_tx_ctx)?;
        out.field("max_ep_rx_ctx", attr.max_ep_rx_ctx)?;
        out.field("max_ep_stx_ctx", attr.max_ep_stx_ctx)?;
        out.field("max_ep_srx_ctx", attr.max_ep_srx_ctx)?;
        out.field("cntr_cnt", attr.cntr_cnt)?;
        out.field("mr_iov_limit", attr.mr_iov_limit)?;
        out.set("caps", attr.caps)?;
        out.set("mode", attr.mode)?;
        out.field("auth_key_size", attr.auth_key_size)?;
        out.field("max_err_data", attr.max_err_data)?;
        out.field("mr_cnt", attr.mr_cnt)?;
        out.field("tclass", attr.tclass)?;
        out.field("max_ep_auth_key", attr.max_ep_auth_key)?;
        out.field("max_group_id", attr.max_group_id)?;
        out.field("max_cntr_value", attr.max_cntr_value)?;
        out.field("max_err_cntr_value", attr.max_err_cntr_value)?;
        out.field("max_xpu_ctx_cnt", attr.max_xpu_ctx_cnt)
    })
}

fn fabric_attr(out: &mut Yaml<'_, '_>, attr: &FabricAttr) -> fmt::Result {
    out.section("fi_fabric_attr", |out| {
        out.name("name", &attr.name)?;
        out.name("prov_name", &attr.prov_name)?;
        out.field("prov_version", attr.prov_version)?;
        out.field("api_version", attr.api_version)
    })
}

fn nic_attr(out: &mut Yaml<'_, '_>, nic: &Nic) -> fmt::Result {
    out.section("nic", |out| {
        out.section("fi_device_attr", |out| {
            out.name("name", &nic.device_attr.name)?;
            out.name("device_id", &nic.device_attr.device_id)?;
            out.name("device_version", &nic.device_attr.device_version)?;
            out.name("vendor_id", &nic.device_attr.vendor_id)?;
            out.name("driver", &nic.device_attr.driver)?;
            out.name("firmware", &nic.device_attr.firmware)
        })?;
        out.section("fi_bus_attr", |out| {
            out.field("bus_type", nic.bus_attr.bus_type())?;
            match nic.bus_attr {
                BusAttr::Unknown => Ok(()),
                BusAttr::Pci(pci) => out.section("fi_pci_attr", |out| {
                    out.field("domain_id", pci.domain_id)?;
                    out.field("bus_id", pci.bus_id)?;
                    out.field("device_id", pci.device_id)?;
                    out.field("function_id", pci.function_id)
                }),
            }
        })?;
        out.section("fi_link_attr", |out| {
            out.name("address", &nic.link_attr.address)?;
            out.field("mtu", nic.link_attr.mtu)?;
            out.field("speed", nic.link_attr.speed)?;
            out.field("state", nic.link_attr.state)?;
            out.name("network_type", &nic.link_attr.network_type)
        })?;
        nic.numa_node.map_or(Ok(()), |node| out.field("numa_node", node))
    })
}

/// Writes `name: value` lines, indented by section.
struct Yaml<'a, 'b> {
    f: &'a mut Formatter<'b>,
    indent: usize,
}

impl Yaml<'_, '_> {
    fn section(&mut self, name: &str, body: impl FnOnce(&mut Self) -> fmt::Result) -> fmt::Result {
        self.start(name)?;
        self.f.write_char('\n')?;
        self.indent += 1;
        let written = body(self);
        self.indent -= 1;
        written
    }

    fn field(&mut self, name: &str, value: impl Display) -> fmt::Result {
        self.start(name)?;
        writeln!(self.f, " {value}")
    }

    fn set(&mut self, name: &str, flags: impl Display) -> fmt::Result {
        self.field(name, format_args!("[ {flags} ]"))
    }

    fn name(&mut self, name: &str, value: &str) -> fmt::Result {
        self.field(name, if value.is_empty() { "(null)" } else { value })
    }

    fn handle(&mut self, name: &str, handle: Option<&crate::Handle>) -> fmt::Result {
        match handle {
            Some(handle) => self.field(name, format_args!("{handle:?}")),
            None => self.field(name, "(nil)"),
        }
    }

    fn start(&mut self, name: &str) -> fmt::Result {
        write!(self.f, "{:width$}{name}:", "", width = self.indent * 4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EpType, PciAttr, Version};

    #[test]
    fn a_flag_set_prints_the_names_of_c() {
        assert_eq!((Caps::MSG | Caps::HMEM).to_string(), "FI_MSG, FI_HMEM");
        assert_eq!((MrMode::BASIC | MrMode::RMA_EVENT).to_string(), "FI_MR_BASIC, FI_MR_RMA_EVENT");
        assert_eq!(MsgOrder::SAS.to_string(), "FI_ORDER_SAS");
        assert_eq!(Mode::empty().to_string(), "");
    }

    #[test]
    fn a_bit_without_a_name_prints_as_a_number() {
        assert_eq!(Caps::from_bits_retain(1 << 1 | 1 << 63).to_string(), "FI_MSG, 0x8000000000000000");
        assert_eq!(Caps::from_bits_retain(1).to_string(), "0x1");
    }

    #[test]
    fn an_info_prints_in_the_shape_of_fi_info() {
        let mut info = Info { caps: Caps::MSG | Caps::RMA, ..Info::default() };
        info.ep_attr.ep_type = EpType::Rdm;
        info.ep_attr.rx_ctx_cnt = SHARED_CONTEXT;
        info.fabric_attr.prov_name = "shm".into();
        info.fabric_attr.prov_version = Version::new(2, 6);
        let text = info.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[..3], ["fi_info:", "    caps: [ FI_MSG, FI_RMA ]", "    mode: [  ]"]);
        for line in [
            "    src_addr: (null)",
            "    fi_ep_attr:",
            "        type: FI_EP_RDM",
            "        mem_tag_format: 0x0000000000000000",
            "        rx_ctx_cnt: FI_SHARED_CONTEXT",
            "        prov_version: 2.6",
            "    nic: (nil)",
        ] {
            assert!(lines.contains(&line), "{line:?} is missing from\n{text}");
        }
    }

    #[test]
    fn a_device_prints_below_its_info() {
        let bus_attr = BusAttr::Pci(PciAttr { bus_id: 59, ..PciAttr::default() });
        let nic = Nic { bus_attr, numa_node: Some(1), ..Nic::default() };
        let text = Info { nic: Some(nic), ..Info::default() }.to_string();
        assert!(text.contains("\n            fi_pci_attr:\n                domain_id: 0\n"), "{text}");
        assert!(text.ends_with("\n        numa_node: 1\n"), "{text}");
    }
}
