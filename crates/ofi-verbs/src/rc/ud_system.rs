//! Unreliable datagrams on RDMA devices of this host, through rdma-core.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::Arc;

use ibv::{
    AddressHandle, CompletionChannel, CompletionQueue, Gid, GroupAddress, Multicast, ProtectionDomain,
    UdAttr, UdPeer, UdQueuePair, Way,
};

use super::system::{Port, System};
use super::ud::{Datagrams, Membership, UdPort, UdQueues, UdRoute, UdSizes, UdTarget};
use super::{Error, Result, Segment, WorkCompletion};

/// A port's attributes for datagrams.
///
/// # Errors
/// The errors of ibv_query_device(3) and ibv_query_port(3).
pub fn port(context: ibv::Context, number: u8, gid: Gid) -> Result<UdPort> {
    let (info, port) = (context.query()?, context.port(number)?);
    let (queue, completions) = (info.max_queue, info.max_completions);
    let (mtu, lid, is_ethernet) = (port.mtu, port.lid, port.ethernet);
    Ok(UdPort { gid: gid.0, lid, is_ethernet, mtu, queue, completions, groups: info.max_groups })
}

impl Datagrams for System {
    fn port(&self, _ip: IpAddr) -> Result<UdPort> {
        port(self.pd().context(), self.port().number, self.port().gid)
    }

    fn open(&self, _ip: IpAddr, sizes: UdSizes) -> Result<Box<dyn UdQueues>> {
        let channel = CompletionChannel::new(self.pd().context())?;
        let cq = CompletionQueue::new(&channel, sizes.sends + sizes.receives)?;
        let narrow = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let qp = UdQueuePair::new(UdAttr {
            pd: Arc::clone(self.pd()),
            cq: Arc::clone(&cq),
            sends: narrow(sizes.sends),
            receives: narrow(sizes.receives),
            port: self.port().number,
            qkey: sizes.qkey,
        })?;
        let (pd, port) = (Arc::clone(self.pd()), self.port());
        Ok(Box::new(Opened { qp, cq, channel, pd, port }))
    }
}

/// A queue pair. It is declared before the objects that it uses, so that it is dropped first.
struct Opened {
    qp: UdQueuePair,
    cq: Arc<CompletionQueue>,
    channel: Arc<CompletionChannel>,
    pd: Arc<ProtectionDomain>,
    port: Port,
}

impl Membership for Multicast {
    fn grant(&mut self) -> Result<Option<GroupAddress>> {
        self.grant()
    }

    fn fd(&self) -> RawFd {
        self.fd()
    }
}

// SAFETY: the verbs interface promises this of requests and receives; a destroyed queue pair accesses no memory.
unsafe impl UdQueues for Opened {
    fn number(&self) -> u32 {
        self.qp.number()
    }

    fn route(&self, gid: Option<[u8; 16]>, lid: u16) -> Result<UdRoute> {
        let Port { number: port, gid_index, .. } = self.port;
        let handle =
            AddressHandle::along(&self.pd, Way { gid: gid.map(Gid), gid_index, hops: 64, lid, port })?;
        Ok(handle)
    }

    fn join(&self, group: IpAddr) -> Result<Box<dyn Membership>> {
        Ok(Box::new(Multicast::join(self.pd.context(), self.port.gid.ip(), group)?))
    }

    fn attach(&mut self, group: GroupAddress) -> Result<()> {
        self.qp.attach(group)
    }

    fn detach(&mut self, group: GroupAddress) {
        self.qp.detach(group);
    }

    unsafe fn send(&self, id: u64, from: Segment, to: UdTarget<'_>, data: Option<u32>) -> Result<()> {
        let Some(handle) = to.route.downcast_ref::<AddressHandle>() else {
            let advice = "the route belongs to another device".into();
            return Err(Error { call: "ibv_post_send", errno: libc::EXDEV, advice });
        };
        // SAFETY: the caller's promise.
        unsafe { self.qp.send(id, from, UdPeer { handle, qp: to.qp, qkey: to.qkey }, data) }
    }

    unsafe fn receive(&self, id: u64, into: Segment) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.qp.receive(id, into) }
    }

    fn poll(&self, into: &mut VecDeque<WorkCompletion>) -> Result<usize> {
        self.cq.poll(|entry| into.push_back(entry))
    }

    fn arm(&self) -> Result<()> {
        self.cq.arm()
    }

    fn quiet(&self) {
        self.cq.quiet();
    }

    fn fd(&self) -> RawFd {
        self.channel.fd()
    }

    fn has_queue(&self, number: usize) -> bool {
        number == self.cq.number()
    }
}
