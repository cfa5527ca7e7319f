//! A transport's part of an endpoint: its peers, queues and sockets.

use std::any::Any;
use std::os::fd::RawFd;
use std::sync::{Arc, Weak};

use ofi_api::{Address, EpOption, Errno, Error, Piece, Result, Statistic};

use super::{
    Arm, OutAccess, OutAtomic, OutMessage, OutNote, OutPlain, OutRma, PeerId, RequestData, Transport, Upcalls,
};
use crate::slots::SlotId;

/// The outcome of posting an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// It is finished; the core reports it.
    Done,
    /// The transport opened a slot and will finish it.
    Pending,
}

/// A device's part of a shared receive context: it fills the context's receives with messages to any of its endpoints.
pub trait SharedReceives: Any + Send + Sync {
    /// Passes a receive to the device. It ends with [`Upcalls::landed`], [`Upcalls::spent`] or [`Upcalls::received`] of
    /// the endpoint whose message took it, possibly before this returns.
    ///
    /// # Errors
    /// The device's error; then it has not taken the receive.
    ///
    /// # Safety
    /// The pieces are lent until the receive has ended, or the context was [closed](Self::close) and its endpoints'
    /// transport has settled ([`TransportEndpoint::settle_receives`]).
    unsafe fn post(&self, id: SlotId, pieces: &[Piece]) -> Result<()>;

    /// The application has closed the context.
    fn close(&self);
}

/// The interface that a transport may call from its own thread. See [`TransportEndpoint::attend`].
pub trait Attendant: Send + Sync {
    /// Makes the core call [`TransportEndpoint::let_out`] under the endpoint's lock. Returns `false` if another thread
    /// holds the lock, which may last long if the application was stopped inside a call.
    fn let_out(&self) -> bool;
}

/// The outcome of abandoning an operation ([`TransportEndpoint::give_up`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenUp {
    /// It continues without the application's memory, and ends with [`Upcalls::finish`].
    GoesOn,
    /// It is over at this end: the core removes it from its table.
    Over,
    /// A device still uses the memory. The operation continues, and a later call may abandon it.
    Busy,
}

/// A transport's part of one endpoint.
///
/// # Safety
/// Memory that an operation lends, here or in [`Upcalls::op`] and [`Upcalls::receiving`], may be read or written by
/// this end, its threads, peers and devices, but only until the operation has ended ([`Upcalls::finish`],
/// [`Upcalls::received`], [`Upcalls::abandon`]). After the endpoint is dropped, nothing touches the memory of
/// unfinished operations.
pub unsafe trait TransportEndpoint<T: Transport>: Send {
    /// Makes the endpoint reachable, under `name` or one of the transport's choosing, and returns its address.
    ///
    /// # Errors
    /// `FI_EADDRINUSE`, `FI_EADDRNOTAVAIL`.
    fn enable(&mut self, name: Option<&Address>) -> Result<Address>;

    /// Takes the address that [`TransportEndpoint::enable`] is going to return, before that is called with the same
    /// `name`. `None`: the address is not known before.
    ///
    /// # Errors
    /// Those of [`TransportEndpoint::enable`].
    fn reserve(&mut self, _name: Option<&Address>) -> Result<Option<Address>> {
        Ok(None)
    }

    /// Names the completion queues of the application that report this endpoint's operations and its receives, before
    /// [`TransportEndpoint::enable`]. Different queues have different names while the endpoint exists.
    fn report_to(&mut self, _queues: [Option<usize>; 2]) {}

    /// Returns the peer with this (normalised) address. Creates its slot on first use, after [`Upcalls::introduce`],
    /// and connects lazily.
    ///
    /// # Errors
    /// `FI_EADDRNOTAVAIL` if the transport has no room for another.
    fn peer<H: Upcalls<T>>(&mut self, host: &mut H, address: &Address) -> Result<PeerId>;

    /// Called when the application's vector contains a peer, for the first time or again after addresses were removed.
    fn named<H: Upcalls<T>>(&mut self, _host: &mut H, _peer: PeerId) {}

    /// Whether [`TransportEndpoint::inserted`] is called at each insertion. Called once, after
    /// [`TransportEndpoint::enable`].
    fn follows(&self) -> bool {
        false
    }

    /// Called after the application has inserted addresses into the endpoint's vector, or may have done so before the
    /// endpoint was enabled ([`Upcalls::addresses`]). Insertions by other processes into a shared vector are not
    /// reported here: [`Upcalls::insertions`] counts them.
    fn inserted<H: Upcalls<T>>(&mut self, _host: &mut H) {}

    /// Sends a short message of one piece at once, and finishes it. `false`: nothing was sent, and the core calls
    /// [`TransportEndpoint::send`], the general path.
    ///
    /// An `injected` message may be finished before it has arrived: its end is not reported.
    ///
    /// # Safety
    /// `from` may be read for `len` bytes during the call.
    #[inline]
    unsafe fn send_now<const TAGGED: bool>(
        &mut self,
        _peer: PeerId,
        _tag: u64,
        _from: *const u8,
        _len: usize,
        _injected: bool,
    ) -> bool {
        false
    }

    /// Starts to send a common message that [`TransportEndpoint::send_now`] cannot finish at once, and opens its
    /// operation ([`Upcalls::open`]). `false`: nothing was sent, and the core calls [`TransportEndpoint::send`].
    #[inline]
    fn begin_now<H: Upcalls<T>>(&mut self, _host: &mut H, _out: &OutPlain) -> bool {
        false
    }

    /// Sends a message.
    ///
    /// # Errors
    /// `FI_EAGAIN` for lack of room: the core drops datagrams then, unless the error has a detail, as for a group that
    /// is being joined. An error means that nothing was sent and nothing will be reported.
    fn send<H: Upcalls<T>>(&mut self, host: &mut H, out: &OutMessage<'_>) -> Result<Posted>;

    /// Starts a common read or write at once, and opens its operation ([`Upcalls::open`]). `false`: nothing was
    /// started, and the core calls [`TransportEndpoint::rma`], the general path.
    #[inline]
    fn access_now<H: Upcalls<T>>(&mut self, _host: &mut H, _out: &OutAccess) -> bool {
        false
    }

    /// Reads or writes a peer's memory.
    ///
    /// # Errors
    /// As `send`.
    fn rma<H: Upcalls<T>>(&mut self, host: &mut H, out: &OutRma<'_>) -> Result<Posted>;

    /// Changes a peer's memory atomically: exactly once, despite retransmissions. Only for transports with
    /// [`Transport::atomic_size`].
    ///
    /// # Errors
    /// As `send`.
    fn atomic<H: Upcalls<T>>(&mut self, host: &mut H, out: &OutAtomic<'_>) -> Result<Posted> {
        let _ = (host, out);
        Err(ofi_api::Error::new(Errno::EOPNOTSUPP))
    }

    /// Sends a note: once, and in order with other notes to the same peer. The core may reuse its memory on return.
    /// Only for transports with [`Transport::note_size`].
    ///
    /// # Errors
    /// `FI_EAGAIN` for lack of room.
    fn note(&mut self, out: &OutNote<'_>) -> Result<()> {
        let _ = out;
        Err(ofi_api::Error::new(Errno::EOPNOTSUPP))
    }

    /// Called after each poll while a collective waits for a note of this peer. A transport that would not otherwise
    /// notice that the peer is gone must check for it.
    fn await_note(&mut self, _peer: PeerId) {}

    /// Moves the payload behind `token` into the open receive `into`, then calls [`Upcalls::received`].
    fn pull<H: Upcalls<T>>(&mut self, host: &mut H, peer: PeerId, token: T::Token, into: SlotId);

    /// Closes the context that posted `op` while the operation is in flight: its memory is no longer lent after this
    /// returns. `true`: the operation continues without that memory (a payload was copied, read bytes are dropped), and
    /// ends with [`Upcalls::finish`], which reports nothing for a closed context. `false`: it is over at this end, and
    /// the core removes it from its table. [`TransportEndpoint::settle_receives`] follows.
    fn abandon(&mut self, _peer: PeerId, _id: SlotId, _op: &mut T::Op) -> bool {
        false
    }

    /// The application gives `op` up ([`Transport::ABANDONS`]).
    fn give_up(&mut self, peer: PeerId, id: SlotId, op: &mut T::Op) -> GivenUp {
        if self.abandon(peer, id, op) { GivenUp::GoesOn } else { GivenUp::Over }
    }

    /// Ends the connection to a peer, if there is one. Its operations in flight end with an error, and no request that
    /// either end has posted so far touches memory afterwards. Later posts connect anew. Returns whether this is
    /// ensured. Only for transports with [`Transport::SEVERS`].
    fn sever<H: Upcalls<T>>(&mut self, _host: &mut H, _peer: PeerId) -> bool {
        false
    }

    /// See [`ofi_api::Endpoint::is_lost`]. Noticed by [`TransportEndpoint::poll`].
    fn is_lost(&self) -> bool {
        false
    }

    /// Called when an operation of a closing context is over and no longer in the core's table.
    /// [`TransportEndpoint::abandon`] was called before, unless there was too much to copy.
    /// [`TransportEndpoint::settle_receives`] follows.
    fn removed(&mut self, _peer: PeerId, _id: SlotId, _op: T::Op) {}

    /// Called when receives being filled have ended without [`Upcalls::received`], or reads without
    /// [`Upcalls::finish`], because their context was closed or another transport's failure ended them. After this
    /// returns, nothing writes the memory of a receive that [`Upcalls::receiving`] does not know, or of a read that
    /// [`Upcalls::op`] does not know.
    fn settle_receives<H: Upcalls<T>>(&mut self, _host: &mut H) {}

    /// Tells the sender that the payload behind `token` is not needed.
    fn discard(&mut self, peer: PeerId, token: T::Token);

    /// Whether the transport takes receives before their messages ([`Upcalls::claim`]). Called once, after
    /// [`TransportEndpoint::enable`].
    fn claims(&self) -> bool {
        false
    }

    /// The endpoint's receives belong to a shared context. Called once, after [`TransportEndpoint::enable`].
    fn share(&mut self, _receives: &Arc<dyn SharedReceives>) {}

    /// A receive was posted; called if [`TransportEndpoint::claims`] returns true.
    fn receive_posted<H: Upcalls<T>>(&mut self, _host: &mut H) {}

    /// Executes an access whose memory at this end is at least in part a device's, and at the peer another process's
    /// that is mapped here, by copies of the device's driver. `None`: nothing has happened, and the core copies the
    /// memory of this end for [`TransportEndpoint::rma`].
    fn rma_mapped(&mut self, _out: &OutRma<'_>) -> Option<Result<Posted>> {
        None
    }

    /// Whether the transport's device itself reads and writes this memory of a device (`FI_HMEM`) in an operation with
    /// `peer`, or in a receive that the transport claims: then the core does not copy it. `accesses`: the operation is
    /// a remote read or write. A transport that finds later that its device does not execute the access refuses it with
    /// `FI_EOPNOTSUPP`.
    fn reaches<H: Upcalls<T>>(
        &mut self,
        _host: &mut H,
        _peer: Option<PeerId>,
        _pieces: &[Piece],
        _accesses: bool,
    ) -> bool {
        false
    }

    /// Makes progress: processes arrived packets, sends queued ones, and finishes operations.
    fn poll<H: Upcalls<T>>(&mut self, host: &mut H);

    /// Sets whether the endpoint may use shared memory with peers on its host (`FI_OPT_SHARED_MEMORY_PERMITTED`),
    /// before [`TransportEndpoint::enable`]; by default it may. Not called if [`Transport::needs_shared_memory`].
    fn permit_shared_memory(&mut self, _permitted: bool) {}

    /// Sets a transport-specific option ([`Transport::option`]) or the longest message (`FI_OPT_MAX_MSG_SIZE`), before
    /// [`TransportEndpoint::enable`].
    fn set_option(&mut self, _option: EpOption, _value: usize) {}

    /// Sets the attendant, which makes the endpoint send delayed packets when a peer asks and the application does not
    /// poll.
    fn attend(&mut self, _attendant: Weak<dyn Attendant>) {}

    /// Sends delayed packets, such as acknowledgements, and processes nothing.
    fn let_out<H: Upcalls<T>>(&mut self, _host: &mut H) {}

    /// Releases the grants that the transport holds on a closing registration, after copying the memory that they
    /// protect.
    fn give_back(&mut self) {}

    /// Prepares for blocking on [`TransportEndpoint::wait_fd`].
    fn arm(&mut self) -> Arm;

    /// Becomes readable when an armed endpoint has something to poll for. `None` if the transport cannot block.
    fn wait_fd(&self) -> Option<RawFd>;

    /// Sends a connection packet of up to [`MAX_PACKET`](super::MAX_PACKET) bytes, in order with others. Either it is
    /// delivered, or [`Upcalls::packet_lost`] is called. With `watch`, that is also called within a second after `to`
    /// has ended, until `to` is joined or another packet is sent.
    ///
    /// # Errors
    /// `FI_ENOSYS` for a transport without connections.
    fn packet(&mut self, _to: &Address, _packet: &[u8], _watch: bool) -> Result<()> {
        Err(Error::new(Errno::ENOSYS))
    }

    /// Takes over the port's data of the request that the endpoint accepts ([`Port::held`](super::Port::held)).
    /// [`TransportEndpoint::join`] follows.
    ///
    /// # Errors
    /// The transport's error, with which the acceptance fails.
    fn adopt(&mut self, _held: &RequestData) -> Result<()> {
        Ok(())
    }

    /// Makes `address` the one peer of a connected endpoint, number 0; all others are ignored. `first`: this end starts
    /// the handshake.
    ///
    /// # Errors
    /// Its errors.
    fn join<H: Upcalls<T>>(&mut self, _host: &mut H, _address: &Address, _first: bool) -> Result<()> {
        Err(Error::new(Errno::ENOSYS))
    }

    /// Ends the connection. With `drain`, everything that the peer sent before is processed first, and then
    /// [`Upcalls::fail_peer`] is called.
    fn part<H: Upcalls<T>>(&mut self, _host: &mut H, _drain: bool) {}

    /// Whether all connection packets that were sent are known to have arrived, or to be lost. Where
    /// [`Transport::KEEPS`], the endpoint is polled by a thread until then.
    fn is_settled(&self) -> bool {
        true
    }

    /// Joins a multicast group. With `receives`, messages to it arrive here once it is joined. Returns the address to
    /// send to, and whether the join is complete. A pending one ends with [`Upcalls::joined_group`], in a poll; until
    /// then sends to the address are refused with `FI_EAGAIN`.
    ///
    /// # Errors
    /// `FI_ENOSYS` for a transport without multicast; `FI_EINVAL` for an address that is not a group; the system's
    /// errors.
    fn join_group(&mut self, _group: &Address, _receives: bool) -> Result<(Address, Posted)> {
        Err(Error::new(Errno::ENOSYS))
    }

    /// Leaves a group, by the address that joining it has returned. A join that is pending ends without a report.
    fn leave_group(&mut self, _group: &Address, _receives: bool) {}

    /// Appends the transport's counters.
    fn statistics(&self, into: &mut Vec<Statistic>);

    /// Appends the statistics of the path to one peer.
    fn peer_statistics(&self, _peer: PeerId, _into: &mut Vec<Statistic>) {}
}
