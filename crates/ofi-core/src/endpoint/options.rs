//! Properties of an endpoint that are read and set by number or name: options (`fi_getopt`) and statistics.

use ofi_api::{EpOption, Errno, Error, FiAddr, Result, Statistic};

use super::receive::RxSide;
use super::transmit::TxSide;
use super::{EpCore, State};
use crate::export::About;
use crate::export::Counted;
use crate::transport::{Transport, TransportEndpoint};

impl<T: Transport> EpCore<T> {
    pub(super) fn option(&self, option: EpOption) -> Result<usize> {
        self.born.check()?;
        let guard = self.state.lock();
        let limits = &guard.ends.tx.limits;
        Ok(match option {
            EpOption::MinMultiRecv => guard.ends.rx.queue.min_multi_recv,
            EpOption::CmDataSize => T::cm_data_size(),
            EpOption::MaxMsgSize => limits.message,
            EpOption::MaxTaggedSize => limits.tagged,
            EpOption::MaxRmaSize => limits.rma,
            EpOption::InjectMsgSize => limits.inject_message,
            EpOption::InjectTaggedSize => limits.inject_tagged,
            EpOption::InjectRmaSize => limits.inject_rma,
            EpOption::MaxAtomicSize => guard.ends.tx.atomics.size,
            EpOption::InjectAtomicSize => guard.ends.tx.atomics.inject,
            EpOption::SharedMemoryPermitted => guard.shared_memory.into(),
            EpOption::HmemP2p => guard.hmem_p2p,
            EpOption::CudaApiPermitted if guard.ends.devices.is_some() => 1,
            EpOption::TxSize => self.info.tx_attr.size,
            EpOption::RxSize => self.info.rx_attr.size,
            other => {
                let domain = &self.domain.part.transport;
                let own = T::option(domain, &self.info, &guard.own_options, other);
                return own.ok_or_else(|| refused(other));
            }
        })
    }

    pub(super) fn set_option(&self, option: EpOption, value: usize) -> Result<()> {
        self.born.check()?;
        let mut guard = self.state.lock();
        let info = &self.info;
        let (max_size, max_inject) = (info.ep_attr.max_msg_size, info.tx_attr.inject_size);
        if option == EpOption::CudaApiPermitted && guard.ends.devices.is_some() {
            return permit_cuda(value);
        }
        let tx = &mut guard.ends.tx;
        let (limits, atomics) = (&mut tx.limits, &mut tx.atomics);
        let (field, max) = match option {
            EpOption::MinMultiRecv => {
                guard.ends.rx.queue.min_multi_recv = value;
                return Ok(());
            }
            EpOption::SharedMemoryPermitted => return guard.permit_shared_memory(value),
            EpOption::HmemP2p => return guard.transfer_between_devices(value),
            EpOption::MaxMsgSize => (&mut limits.message, max_size),
            EpOption::MaxTaggedSize => (&mut limits.tagged, max_size),
            EpOption::MaxRmaSize => (&mut limits.rma, max_size),
            EpOption::InjectMsgSize => (&mut limits.inject_message, max_inject),
            EpOption::InjectTaggedSize => (&mut limits.inject_tagged, max_inject),
            EpOption::InjectRmaSize => (&mut limits.inject_rma, max_inject),
            EpOption::MaxAtomicSize => (&mut atomics.size, T::atomic_size(self.info.ep_attr.ep_type)),
            EpOption::InjectAtomicSize => {
                (&mut atomics.inject, max_inject.min(T::atomic_size(self.info.ep_attr.ep_type)))
            }
            other => return self.set_own(&mut guard, other, value),
        };
        if value > max {
            return Err(Error::wanted(
                Errno::EINVAL,
                format!("{option:?}"),
                format!("at most {max}"),
                value.to_string(),
                "ask getinfo for a larger limit",
            ));
        }
        *field = value;
        guard.ends.tx.decide();
        Ok(())
    }

    /// Sets an option of the transport's own.
    fn set_own(&self, state: &mut State<T>, option: EpOption, value: usize) -> Result<()> {
        let domain = &self.domain.part.transport;
        if T::option(domain, &self.info, &state.own_options, option).is_none() {
            return Err(refused(option));
        }
        if option.is_bool() && value > 1 {
            return Err(not_a_bool(option, value));
        }
        T::check_option(domain, &self.info, option, value)?;
        if state.transport.is_some() {
            // As C's provider answers it.
            return Err(Error::wanted(
                Errno::EINVAL,
                format!("endpoint option {option:?}"),
                "an endpoint before fi_enable",
                "an enabled one",
                "set it first",
            ));
        }
        state.own_options.retain(|(other, _)| *other != option);
        state.own_options.push((option, value));
        Ok(())
    }

    pub(super) fn statistics(&self) -> Vec<Statistic> {
        if !self.born.is_here() {
            return Vec::new();
        }
        let guard = self.state.lock();
        let mut all = guard.ends.tx.statistics();
        let under_way = guard.ends.tx.ops.len() as u64;
        all.push(stat("tx_outstanding", under_way, "operations that have not ended"));
        all.append(&mut guard.ends.rx.statistics());
        if let Some(connection) = &guard.ends.connection {
            all.append(&mut connection.statistics());
        }
        if let Some(transport) = &guard.transport {
            transport.statistics(&mut all);
        }
        all
    }

    pub(super) fn peer_statistics(&self, address: FiAddr) -> Result<Vec<Statistic>> {
        let mut guard = self.state.lock();
        let peer = guard.peer(address)?;
        let mut all = Vec::new();
        if let Some(transport) = &guard.transport {
            transport.peer_statistics(peer, &mut all);
        }
        Ok(all)
    }
}

impl<T: Transport> Counted for EpCore<T> {
    /// Those of the endpoint, and of its contexts.
    fn counts(&self) -> Vec<Statistic> {
        let mut all = self.statistics();
        let guard = self.state.lock();
        for (_, side) in guard.ends.contexts.iter().flat_map(|contexts| contexts.all()) {
            all.append(&mut side.tx.statistics());
            all.append(&mut side.rx.statistics());
        }
        all
    }

    fn about(&self) -> About {
        let guard = self.state.lock();
        let name =
            guard.ends.connection.as_ref().and_then(|connection| connection.name()).or(guard.name.as_ref());
        About {
            provider: self.info.fabric_attr.prov_name.clone(),
            domain: self.info.domain_attr.name.clone(),
            kind: format!("{:?}", self.info.ep_attr.ep_type).to_uppercase(),
            address: name.map(ToString::to_string).unwrap_or_default(),
        }
    }
}

#[cold]
fn not_a_bool(option: EpOption, value: usize) -> Error {
    let subject = format!("endpoint option {option:?}");
    Error::wanted(Errno::EINVAL, subject, "true or false", value.to_string(), "give 1 or 0")
}

/// `FI_HMEM_P2P_ENABLED`, the first of the values of `FI_OPT_FI_HMEM_P2P`, and the default of endpoints with `FI_HMEM`.
pub(super) const P2P_ENABLED: usize = 0;
/// `FI_HMEM_P2P_REQUIRED`.
const P2P_REQUIRED: usize = 1;
/// `FI_HMEM_P2P_DISABLED`, the last of the values, and the only one that endpoints without `FI_HMEM` accept.
pub(super) const P2P_DISABLED: usize = 3;

/// Sets `FI_OPT_CUDA_API_PERMITTED` on an endpoint with `FI_HMEM`, which copies with the CUDA driver.
fn permit_cuda(value: usize) -> Result<()> {
    match value {
        1 => Ok(()),
        0 => Err(Error::wanted(
            Errno::EOPNOTSUPP,
            "FI_OPT_CUDA_API_PERMITTED",
            "true: the provider copies a device's memory by CUDA's driver",
            "false",
            "open the endpoint without FI_HMEM, and copy through memory of the host",
        )),
        _ => Err(not_a_bool(EpOption::CudaApiPermitted, value)),
    }
}

/// The error for an option that is not supported, or cannot be set.
#[cold]
fn refused(option: EpOption) -> Error {
    let (found, advice) = match option {
        EpOption::CmDataSize => ("a read-only one", "attach at most that much data to a connection request"),
        EpOption::TxSize | EpOption::RxSize => (
            "one that is read-only once the endpoint is open",
            "ask getinfo for a size, in tx_attr and rx_attr",
        ),
        EpOption::BufferedMin | EpOption::BufferedLimit => {
            ("one of buffered receives, which API 2 removed", "post receives with FI_MULTI_RECV")
        }
        EpOption::SendBufSize | EpOption::RecvBufSize => {
            ("one of stream sockets", "use the settings of the provider (fi_info -e)")
        }
        EpOption::CudaApiPermitted => {
            ("one of endpoints with FI_HMEM; this one never calls a device", "leave it out")
        }
        EpOption::XpuTrigger => {
            ("one of devices that start operations", "use FI_TRIGGER, which counters start")
        }
        EpOption::FirewallAddr => ("one of providers that connect to their peers", "leave it out"),
        _ => ("one that the provider does not have", "leave it out"),
    };
    let subject = format!("endpoint option {option:?}");
    let wanted = "an option that the endpoint supports";
    Error::wanted(Errno::ENOPROTOOPT, subject, wanted, found, advice)
}

impl<T: Transport> State<T> {
    /// Sets `FI_OPT_FI_HMEM_P2P`. Operations of this end are staged in host memory, which every value but
    /// `FI_HMEM_P2P_REQUIRED` permits. Whether peers' NICs may access device memory is decided for the domain
    /// (`FI_HMEM_DISABLE_P2P`). With `FI_HMEM_P2P_DISABLED`, the endpoint maps no peer's device memory, and
    /// lets no peer map its own.
    fn transfer_between_devices(&mut self, value: usize) -> Result<()> {
        let has_devices = self.ends.devices.is_some();
        if value == P2P_DISABLED || has_devices && value < P2P_DISABLED && value != P2P_REQUIRED {
            self.hmem_p2p = value;
            if let Some(transport) = self.transport.as_mut().filter(|_| has_devices) {
                transport.set_option(EpOption::HmemP2p, value);
            }
            return Ok(());
        }
        let errno = if value < P2P_DISABLED { Errno::EOPNOTSUPP } else { Errno::EINVAL };
        let (wanted, advice) = match has_devices {
            true => {
                ("any but FI_HMEM_P2P_REQUIRED (1): copies go through memory of the host", "leave it out")
            }
            false => (
                "FI_HMEM_P2P_DISABLED (3): the endpoint was opened without FI_HMEM",
                "leave it out, or ask getinfo for FI_HMEM; with FI_EP_MSG of verbs, register a dma-buf",
            ),
        };
        Err(Error::wanted(errno, "FI_OPT_FI_HMEM_P2P", wanted, value.to_string(), advice))
    }

    /// Sets `FI_OPT_SHARED_MEMORY_PERMITTED`.
    fn permit_shared_memory(&mut self, value: usize) -> Result<()> {
        if value > 1 {
            return Err(not_a_bool(EpOption::SharedMemoryPermitted, value));
        }
        if self.transport.is_some() && self.shared_memory != (value == 1) {
            return Err(Error::wanted(
                Errno::EINVAL,
                "FI_OPT_SHARED_MEMORY_PERMITTED",
                "an endpoint before fi_enable",
                "an enabled one",
                "set it first",
            ));
        }
        if value == 0 && T::needs_shared_memory() {
            return Err(Error::wanted(
                Errno::EOPNOTSUPP,
                "FI_OPT_SHARED_MEMORY_PERMITTED",
                "true: the provider has nothing but shared memory",
                "false",
                "use provider udp",
            ));
        }
        self.shared_memory = value == 1;
        Ok(())
    }
}

impl<T: Transport> TxSide<T> {
    /// Operations posted here.
    pub fn statistics(&self) -> Vec<Statistic> {
        let counts = &self.counts;
        vec![
            stat("tx_messages", counts.messages, "messages sent"),
            stat("tx_bytes", counts.bytes, "bytes of messages sent"),
            stat("tx_writes", counts.writes, "remote writes posted"),
            stat("tx_atomics", self.atomics.posted, "atomic operations posted"),
            stat("tx_reads", counts.reads, "remote reads posted"),
            stat("tx_again", counts.again, "posts refused with FI_EAGAIN"),
            stat("tx_failed", counts.failed, "operations that ended with an error"),
            stat(
                "tx_dropped",
                counts.dropped,
                "datagrams dropped: their receiver had no room or did not exist",
            ),
        ]
    }
}

impl<T: Transport> RxSide<T> {
    /// Receives at this end, and waiting messages.
    pub fn statistics(&self) -> Vec<Statistic> {
        let (counts, matcher) = (&self.counts, &self.queue.matcher);
        vec![
            stat("rx_messages", counts.messages, "messages received"),
            stat("rx_bytes", counts.bytes, "bytes of messages received"),
            stat("rx_posted", matcher.posted_len() as u64, "posted receives"),
            stat("rx_unexpected", counts.unexpected, "messages that arrived before their receive"),
            stat(
                "rx_unexpected_now",
                matcher.unexpected_len() as u64,
                "unexpected messages that wait for a receive",
            ),
            stat("rx_unexpected_bytes", matcher.bytes_held() as u64, "bytes of the unexpected messages"),
            stat("rx_over_budget", counts.over_budget, "unexpected payloads taken beyond the byte budget"),
            stat("rx_truncated", counts.truncated, "messages longer than their receive"),
            stat("rx_failed", counts.failed, "receives that ended with an error"),
            stat(
                "rx_dropped",
                counts.dropped,
                "datagrams dropped: no receive was posted in time; and messages for receive contexts that do not exist",
            ),
            stat("rx_stopped", counts.stopped, "times that a peer had to wait for room"),
        ]
    }
}

fn stat(name: &'static str, value: u64, help: &'static str) -> Statistic {
    Statistic { name, value, help }
}
