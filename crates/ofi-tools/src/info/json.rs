//! The output as JSON: C's field names, flags as lists of C's names, `null` for absent values.

use ofi::config::Listed;
use ofi::raw::{BusAttr, DomainAttr, EpAttr, Info, Nic, Refusal, RxAttr, TxAttr, Version};
use serde_json::{Value, json};

/// Every attribute of an interface.
pub fn info(info: &Info) -> Value {
    json!({
        "caps": list(info.caps),
        "mode": list(info.mode),
        "addr_format": text(info.addr_format),
        "src_addr": info.src_addr.as_ref().map(ToString::to_string),
        "dest_addr": info.dest_addr.as_ref().map(ToString::to_string),
        "tx_attr": tx_attr(&info.tx_attr),
        "rx_attr": rx_attr(&info.rx_attr),
        "ep_attr": ep_attr(&info.ep_attr),
        "domain_attr": domain_attr(&info.domain_attr),
        "fabric_attr": {
            "name": name(&info.fabric_attr.name),
            "prov_name": name(&info.fabric_attr.prov_name),
            "prov_version": text(info.fabric_attr.prov_version),
            "api_version": text(info.fabric_attr.api_version),
        },
        "nic": info.nic.as_ref().map(nic),
    })
}

/// A hint that was refused.
pub fn refusal(refusal: &Refusal) -> Value {
    json!({
        "provider": refusal.provider,
        "field": refusal.field,
        "wanted": refusal.wanted,
        "offered": refusal.offered,
    })
}

/// A provider.
pub fn provider((name, version): &(String, Version)) -> Value {
    json!({ "name": name, "version": text(version) })
}

/// A setting.
pub fn setting(setting: &Listed) -> Value {
    json!({
        "provider": setting.provider,
        "name": setting.name,
        "env": setting.env,
        "type": setting.kind.name(),
        "help": setting.help,
        "default": setting.default,
        "value": setting.current,
        "is_set": setting.is_set,
        "problem": setting.problem.as_ref().map(|problem| &problem.reason),
    })
}

/// Versions of the program, the library and its interface.
pub fn version() -> Value {
    let package = env!("CARGO_PKG_VERSION");
    json!({ "fi_info": package, "libfabric": package, "api": text(Version::API) })
}

fn tx_attr(attr: &TxAttr) -> Value {
    json!({
        "caps": list(attr.caps),
        "mode": list(attr.mode),
        "op_flags": list(attr.op_flags),
        "msg_order": list(attr.msg_order),
        "inject_size": attr.inject_size,
        "size": attr.size,
        "iov_limit": attr.iov_limit,
        "rma_iov_limit": attr.rma_iov_limit,
        "tclass": attr.tclass.as_c(),
    })
}

fn rx_attr(attr: &RxAttr) -> Value {
    json!({
        "caps": list(attr.caps),
        "mode": list(attr.mode),
        "op_flags": list(attr.op_flags),
        "msg_order": list(attr.msg_order),
        "size": attr.size,
        "iov_limit": attr.iov_limit,
    })
}

fn ep_attr(attr: &EpAttr) -> Value {
    json!({
        "type": text(attr.ep_type),
        "protocol": text(attr.protocol),
        "protocol_version": attr.protocol_version,
        "max_msg_size": attr.max_msg_size,
        "msg_prefix_size": attr.msg_prefix_size,
        "max_order_raw_size": attr.max_order_raw_size,
        "max_order_war_size": attr.max_order_war_size,
        "max_order_waw_size": attr.max_order_waw_size,
        "mem_tag_format": attr.mem_tag_format,
        "tx_ctx_cnt": attr.tx_ctx_cnt,
        "rx_ctx_cnt": attr.rx_ctx_cnt,
        "auth_key_size": attr.auth_key_size,
    })
}

fn domain_attr(attr: &DomainAttr) -> Value {
    let models = json!({
        "name": name(&attr.name),
        "threading": text(attr.threading),
        "progress": text(attr.progress),
        "resource_mgmt": text(attr.resource_mgmt),
        "av_type": text(attr.av_type),
        "mr_mode": list(attr.mr_mode),
        "caps": list(attr.caps),
        "mode": list(attr.mode),
        "tclass": attr.tclass.as_c(),
    });
    let limits = json!({
        "mr_key_size": attr.mr_key_size,
        "cq_data_size": attr.cq_data_size,
        "cq_cnt": attr.cq_cnt,
        "ep_cnt": attr.ep_cnt,
        "tx_ctx_cnt": attr.tx_ctx_cnt,
        "rx_ctx_cnt": attr.rx_ctx_cnt,
        "max_ep_tx_ctx": attr.max_ep_tx_ctx,
        "max_ep_rx_ctx": attr.max_ep_rx_ctx,
        "max_ep_stx_ctx": attr.max_ep_stx_ctx,
        "max_ep_srx_ctx": attr.max_ep_srx_ctx,
        "cntr_cnt": attr.cntr_cnt,
        "mr_iov_limit": attr.mr_iov_limit,
        "auth_key_size": attr.auth_key_size,
        "max_err_data": attr.max_err_data,
        "mr_cnt": attr.mr_cnt,
        "max_ep_auth_key": attr.max_ep_auth_key,
        "max_group_id": attr.max_group_id,
        "max_cntr_value": attr.max_cntr_value,
        "max_err_cntr_value": attr.max_err_cntr_value,
        "max_xpu_ctx_cnt": attr.max_xpu_ctx_cnt,
    });
    match (models, limits) {
        (Value::Object(mut all), Value::Object(limits)) => {
            all.extend(limits);
            Value::Object(all)
        }
        (models, _) => models,
    }
}

fn nic(nic: &Nic) -> Value {
    let (device, link) = (&nic.device_attr, &nic.link_attr);
    let pci = match nic.bus_attr {
        BusAttr::Pci(pci) => Some(pci.to_string()),
        _ => None,
    };
    json!({
        "device_attr": {
            "name": name(&device.name),
            "device_id": name(&device.device_id),
            "device_version": name(&device.device_version),
            "vendor_id": name(&device.vendor_id),
            "driver": name(&device.driver),
            "firmware": name(&device.firmware),
        },
        "bus_attr": { "bus_type": text(nic.bus_attr.bus_type()), "pci": pci },
        "link_attr": {
            "address": name(&link.address),
            "mtu": link.mtu,
            "speed": link.speed,
            "state": text(link.state),
            "network_type": name(&link.network_type),
        },
        "numa_node": nic.numa_node,
    })
}

/// A flag set, whose text is its names separated by commas.
fn list(flags: impl std::fmt::Display) -> Vec<String> {
    flags.to_string().split(", ").filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

fn text(value: impl std::fmt::Display) -> String {
    value.to_string()
}

/// A string that is NULL in C if it is empty here.
fn name(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ofi::raw::Caps;

    #[test]
    fn flags_are_lists_and_nothing_is_null() {
        let value = info(&Info { caps: Caps::MSG | Caps::RMA, ..Info::default() });
        assert_eq!(value["caps"], json!(["FI_MSG", "FI_RMA"]));
        assert_eq!(value["mode"], json!([]));
        assert_eq!((&value["nic"], &value["domain_attr"]["name"]), (&Value::Null, &Value::Null));
        assert_eq!(value["domain_attr"]["mr_cnt"], 0);
    }
}
