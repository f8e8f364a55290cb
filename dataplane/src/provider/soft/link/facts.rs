//! What the kernel and the driver of an interface say of it: for `doctor`, which changes nothing.
//!
//! The questions are those of `ethtool(8)` by ioctl (`linux/ethtool.h`), and, for what the driver can do with XDP, the generic
//! netlink family `netdev` (`Documentation/netlink/specs/netdev.yaml` of the kernel, 6.3 or newer).

use std::io;

use netlink_sys::protocols::{NETLINK_GENERIC, NETLINK_ROUTE};
use netlink_sys::{Socket, SocketAddr};

use super::interface::{Interface, Request};
use super::xdp::holder;

/// What is known of an interface. `None`: neither the kernel nor the driver says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct InterfaceFacts {
    /// Whether it has been set up (`IFF_UP`).
    pub(crate) is_up: bool,
    pub(crate) is_ethernet: bool,
    /// The most bytes of a packet, without the Ethernet header.
    pub(crate) mtu: u32,
    /// The name of the driver.
    pub(crate) driver: Option<String>,
    /// Entries of the receive ring, and the most that it can have.
    pub(crate) receive_ring: Option<(u32, u32)>,
    pub(crate) receive_queues: Option<u32>,
    /// Whether the hardware merges what it receives (LRO), and whether the kernel does (GRO).
    pub(crate) lro: Option<bool>,
    pub(crate) gro: Option<bool>,
    /// Whether the hardware takes VLAN tags off.
    pub(crate) takes_tags: Option<bool>,
    pub(crate) xdp: Option<XdpSupport>,
    /// The XDP program that it has.
    pub(crate) program: Option<XdpProgram>,
}

/// An XDP program that is at an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct XdpProgram {
    /// Its number.
    pub(crate) program: u32,
    /// The number of the `bpf_link` that holds it there. `None`: it is attached without one, or that is not said.
    pub(crate) link: Option<u32>,
}

/// What a driver can do with XDP: `enum netdev_xdp_act`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct XdpSupport {
    /// It runs programs, and their verdicts lead to sockets.
    pub(crate) native: bool,
    /// AF_XDP without a copy.
    pub(crate) zero_copy: bool,
}

impl InterfaceFacts {
    /// Asks. `None`: there is no interface of that name in this network namespace.
    ///
    /// # Errors
    /// The kernel does not say even whether it is there.
    pub(crate) fn of(name: &str) -> io::Result<Option<Self>> {
        let Some(interface) = Interface::find(name)? else { return Ok(None) };
        let flags = value(name, GET_FLAGS);
        Ok(Some(Self {
            is_up: interface.is_set_up,
            is_ethernet: interface.is_ethernet,
            mtu: interface.mtu,
            driver: driver(name),
            receive_ring: ask::<9>(name, GET_RINGS).map(|it| (it[5], it[1])).filter(|(_, most)| *most > 0),
            receive_queues: receive_queues(name),
            lro: flags.map(|flags| flags & FLAG_LRO != 0),
            gro: value(name, GET_GRO).map(|it| it != 0),
            takes_tags: flags.map(|flags| flags & FLAG_RXVLAN != 0),
            xdp: xdp_support(interface.index),
            program: xdp_program(interface.index),
        }))
    }
}

const ETHTOOL: libc::c_ulong = 0x8946;
const GET_DRIVER: u32 = 0x03;
const GET_RINGS: u32 = 0x10;
const GET_FLAGS: u32 = 0x25;
const GET_GRO: u32 = 0x2b;
const GET_CHANNELS: u32 = 0x3c;
const FLAG_RXVLAN: u32 = 1 << 8;
const FLAG_LRO: u32 = 1 << 15;

/// Asks what is answered in `N` words, the command first. `None`: the driver does not know the question.
fn ask<const N: usize>(name: &str, command: u32) -> Option<[u32; N]> {
    const {
        assert!(N >= 2, "the least that a question of ethtool has");
    }
    let mut words = [0; N];
    words[0] = command;
    let mut request = Request::new(name)?;
    // The kernel writes as many words as the structure of the command has: those of every caller are as many.
    request.ifreq.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
    request.ask(ETHTOOL).ok()?;
    Some(words)
}

/// `struct ethtool_value`.
fn value(name: &str, command: u32) -> Option<u32> {
    ask::<2>(name, command).map(|it| it[1])
}

/// `struct ethtool_drvinfo`: 196 bytes, of which 32 after the command are the name.
fn driver(name: &str) -> Option<String> {
    let words = ask::<49>(name, GET_DRIVER)?;
    let bytes: Vec<u8> = words[1..9].iter().flat_map(|word| word.to_ne_bytes()).take_while(|byte| *byte != 0).collect();
    String::from_utf8(bytes).ok().filter(|name| !name.is_empty())
}

/// How many receive queues an interface has: `struct ethtool_channels`. `None`: its driver does not say.
pub(super) fn receive_queues(name: &str) -> Option<u32> {
    let channels = ask::<9>(name, GET_CHANNELS)?;
    let [receive, combined] = [channels[5], channels[8]];
    Some(receive + combined).filter(|queues| *queues > 0)
}

/// `GENL_ID_CTRL`, `CTRL_CMD_GETFAMILY`, `CTRL_ATTR_FAMILY_ID`, `CTRL_ATTR_FAMILY_NAME` (linux/genetlink.h).
const CONTROL: (u16, u8, u16, u16) = (0x10, 3, 1, 2);
/// `NETDEV_CMD_DEV_GET`, `NETDEV_A_DEV_IFINDEX`, `NETDEV_A_DEV_XDP_FEATURES` (linux/netdev.h).
const NETDEV: (u8, u16, u16) = (1, 1, 3);
const XDP_BASIC: u64 = 1;
const XDP_REDIRECT: u64 = 1 << 1;
const XDP_ZERO_COPY: u64 = 1 << 3;

/// `NETDEV_A_DEV_XDP_RX_METADATA_FEATURES`, and of those `NETDEV_XDP_RX_METADATA_TIMESTAMP`.
const METADATA: (u16, u64) = (5, 1);

/// What the driver can do. `None`: a kernel before 6.3, which does not know.
fn xdp_support(index: u32) -> Option<XdpSupport> {
    let features = number(&device(index)?, NETDEV.2)?;
    Some(XdpSupport {
        native: features & (XDP_BASIC | XDP_REDIRECT) == XDP_BASIC | XDP_REDIRECT,
        zero_copy: features & XDP_ZERO_COPY != 0,
    })
}

/// Whether the driver tells XDP programs when the NIC received a frame. `None`: a kernel that does not know.
pub(super) fn tells_time(index: u32) -> Option<bool> {
    number(&device(index)?, METADATA.0).map(|features| features & METADATA.1 != 0)
}

/// A number of 64 bits among attributes.
fn number(all: &[u8], wanted: u16) -> Option<u64> {
    Some(u64::from_ne_bytes(attribute(all, wanted)?.get(..8)?.try_into().ok()?))
}

/// What the netlink family `netdev` says of an interface.
fn device(index: u32) -> Option<Vec<u8>> {
    let socket = Socket::new(NETLINK_GENERIC).ok()?;
    socket.connect(&SocketAddr::new(0, 0)).ok()?;
    let (control, get_family, family_id, family_name) = CONTROL;
    let answer = converse(&socket, control, get_family, family_name, b"netdev\0")?;
    let family = u16::from_ne_bytes(attribute(&answer, family_id)?.get(..2)?.try_into().ok()?);
    let (get_device, of_index, _) = NETDEV;
    converse(&socket, family, get_device, of_index, &index.to_ne_bytes())
}

/// `IFLA_XDP`, and in it `IFLA_XDP_PROG_ID` (linux/if_link.h).
const XDP: (u16, u16) = (43, 4);

/// The XDP program of an interface, whoever attached it.
pub(super) fn xdp_program(index: u32) -> Option<XdpProgram> {
    let socket = Socket::new(NETLINK_ROUTE).ok()?;
    socket.connect(&SocketAddr::new(0, 0)).ok()?;
    // `struct ifinfomsg`: of it the number alone says which.
    let mut head = [0; 16];
    head[4..8].copy_from_slice(&index.to_ne_bytes());
    let answer = ask_netlink(&socket, (libc::RTM_GETLINK, libc::RTM_NEWLINK), &head, None)?;
    let xdp = attribute(&answer, XDP.0)?;
    let program = u32::from_ne_bytes(attribute(xdp, XDP.1)?.get(..4)?.try_into().ok()?);
    Some(XdpProgram { program, link: holder(index, program) })
}

/// A question of generic netlink with one attribute; gives the attributes of the answer.
fn converse(socket: &Socket, family: u16, command: u8, attribute: u16, value: &[u8]) -> Option<Vec<u8>> {
    ask_netlink(socket, (family, family), &[command, 1, 0, 0], Some((attribute, value)))
}

/// The header of every message of netlink.
const HEADER: usize = 16;

/// A question of netlink (`netlink(7)`); gives the attributes of the answer. `kinds`: its type, and that of the answer;
/// `head`: what comes before attributes, as many bytes in both.
fn ask_netlink(socket: &Socket, kinds: (u16, u16), head: &[u8], ask: Option<(u16, &[u8])>) -> Option<Vec<u8>> {
    let mut question = vec![0; HEADER];
    question.extend(head);
    if let Some((attribute, value)) = ask {
        question.extend((4 + value.len() as u16).to_ne_bytes());
        question.extend(attribute.to_ne_bytes());
        question.extend(value);
        question.resize(question.len().next_multiple_of(4), 0);
    }
    let length = (question.len() as u32).to_ne_bytes();
    question[..4].copy_from_slice(&length);
    question[4..6].copy_from_slice(&kinds.0.to_ne_bytes());
    question[6..8].copy_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    socket.send(&question, 0).ok()?;
    let (answer, _) = socket.recv_from_full().ok()?;
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    // Anything else is an error: there is no such family, or no such interface.
    (kind == kinds.1).then(|| answer.get(HEADER + head.len()..).map(<[u8]>::to_vec)).flatten()
}

/// The value of an attribute, among several one behind the other (`netlink(7)`).
fn attribute(mut all: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(u16::from_ne_bytes(all.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(all.get(2..4)?.try_into().ok()?);
        let value = all.get(4..length)?;
        // Above the number are the marks of nested ones and of those in network order.
        if kind & 0x3fff == wanted {
            return Some(value);
        }
        all = all.get(length.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_known_and_no_other() {
        let facts = InterfaceFacts::of("lo").unwrap().unwrap();
        assert!(facts.is_ethernet && facts.mtu >= 68, "{facts:?}");
        assert_eq!(InterfaceFacts::of("no-such").unwrap(), None);
    }

    #[test]
    fn attributes_are_found_and_broken_ones_end_the_search() {
        // Two bytes of attribute 7 and two of padding, then four bytes of attribute 9.
        let all = [6, 0, 7, 0, 1, 2, 0, 0, 8, 0, 9, 0, 3, 4, 5, 6].map(|byte: u8| byte);
        if cfg!(target_endian = "little") {
            assert_eq!(attribute(&all, 7), Some(&[1, 2][..]));
            assert_eq!(attribute(&all, 9), Some(&[3, 4, 5, 6][..]));
            assert_eq!(attribute(&all, 8), None);
            assert_eq!(attribute(&all[..15], 9), None, "it says more than there is");
            assert_eq!(attribute(&[0, 0, 7, 0], 9), None, "of no length at all");
        }
    }
}
