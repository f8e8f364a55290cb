//! Netlink requests to the kernel (`netlink(7)`). Each request has one reply.

use std::net::IpAddr;

use netlink_sys::protocols::{NETLINK_GENERIC, NETLINK_ROUTE};
use netlink_sys::{Socket, SocketAddr};

/// `GENL_ID_CTRL`, `CTRL_CMD_GETFAMILY`, `CTRL_ATTR_FAMILY_ID`, `CTRL_ATTR_FAMILY_NAME` (linux/genetlink.h).
const CONTROL: (u16, u8, u16, u16) = (0x10, 3, 1, 2);
/// `NETDEV_CMD_DEV_GET` and `NETDEV_A_DEV_IFINDEX` (linux/netdev.h).
const NETDEV: (u8, u16) = (1, 1);
/// `RTA_VIA` (linux/rtnetlink.h). The crate `libc` lacks this constant for musl.
const RTA_VIA: u16 = 18;

/// Returns the attributes of an interface from the generic netlink family `netdev`
/// (`Documentation/netlink/specs/netdev.yaml` of the kernel, 6.3 or newer).
pub(in crate::link) fn netdev_attributes(index: u32) -> Option<Vec<u8>> {
    let socket = connect(NETLINK_GENERIC)?;
    let (control, get_family, family_id, family_name) = CONTROL;
    let reply = genl_request(&socket, control, get_family, family_name, b"netdev\0")?;
    let family = u16::from_ne_bytes(attribute(&reply, family_id)?.get(..2)?.try_into().ok()?);
    let (get_device, of_index) = NETDEV;
    genl_request(&socket, family, get_device, of_index, &index.to_ne_bytes())
}

/// Returns the attributes of an interface from `RTM_GETLINK`.
pub(in crate::link) fn link_attributes(index: u32) -> Option<Vec<u8>> {
    let socket = connect(NETLINK_ROUTE)?;
    // `struct ifinfomsg`: the index alone selects the interface.
    let mut head = [0; 16];
    head[4..8].copy_from_slice(&index.to_ne_bytes());
    netlink_request(&socket, (libc::RTM_GETLINK, libc::RTM_NEWLINK), &head, &[])
}

/// Looks up the next hop of packets from `source` to `destination` over an interface in the kernel's routes and
/// neighbours. Returns the MAC address of the next hop. `index` is the index of the interface. Returns `None` if the
/// kernel has no route, or does not know the MAC address. Sends no packets.
pub fn next_hop(index: u32, source: IpAddr, destination: IpAddr) -> Option<[u8; 6]> {
    let socket = connect(NETLINK_ROUTE)?;
    let (family, source, destination) = (family(destination), bytes(source), bytes(destination));
    // `struct rtmsg`: the family, and the prefix lengths of the destination and the source.
    let mut head = [0; 12];
    head[0] = family;
    head[1..3].copy_from_slice(&[destination.len() as u8 * 8, source.len() as u8 * 8]);
    let wanted: [(u16, &[u8]); 3] =
        [(libc::RTA_DST, &destination), (libc::RTA_SRC, &source), (libc::RTA_OIF, &index.to_ne_bytes())];
    let route = netlink_request(&socket, (libc::RTM_GETROUTE, libc::RTM_NEWROUTE), &head, &wanted)?;
    let interface = attribute(&route, libc::RTA_OIF)?;
    let (family, hop) = match (attribute(&route, RTA_VIA), attribute(&route, libc::RTA_GATEWAY)) {
        // `struct rtvia`: the family and the address of a gateway of another family.
        (Some(via), _) => (*via.first()?, via.get(2..)?),
        (None, Some(gateway)) => (family, gateway),
        (None, None) => (family, &destination[..]),
    };
    // `struct ndmsg`: the family and the index of the interface.
    let mut head = [0; 12];
    head[0] = family;
    head[4..8].copy_from_slice(interface.get(..4)?);
    let neighbor = netlink_request(&socket, (libc::RTM_GETNEIGH, libc::RTM_NEWNEIGH), &head, &[(libc::NDA_DST, hop)])?;
    // The kernel leaves out the MAC address while the neighbour is not resolved.
    attribute(&neighbor, libc::NDA_LLADDR)?.try_into().ok()
}

fn family(address: IpAddr) -> u8 {
    if address.is_ipv4() { libc::AF_INET as u8 } else { libc::AF_INET6 as u8 }
}

fn bytes(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn connect(protocol: isize) -> Option<Socket> {
    let socket = Socket::new(protocol).ok()?;
    socket.connect(&SocketAddr::new(0, 0)).ok()?;
    Some(socket)
}

/// Sends a generic netlink request with one attribute. Returns the attributes of the reply.
fn genl_request(socket: &Socket, family: u16, command: u8, attribute: u16, value: &[u8]) -> Option<Vec<u8>> {
    netlink_request(socket, (family, family), &[command, 1, 0, 0], &[(attribute, value)])
}

/// The size of a netlink message header, in bytes.
const HEADER: usize = 16;

/// Sends a netlink request (`netlink(7)`), and returns the attributes of the reply. `kinds` are the message types of
/// the request and of the reply. `head` is the part of the request between the netlink header and the attributes. The
/// reply has a head of the same size. `attributes` has the number and the value of each attribute in the request.
fn netlink_request(socket: &Socket, kinds: (u16, u16), head: &[u8], attributes: &[(u16, &[u8])]) -> Option<Vec<u8>> {
    let mut message = vec![0; HEADER];
    message.extend(head);
    for (attribute, value) in attributes {
        message.extend((4 + value.len() as u16).to_ne_bytes());
        message.extend(attribute.to_ne_bytes());
        message.extend(*value);
        message.resize(message.len().next_multiple_of(4), 0);
    }
    let length = (message.len() as u32).to_ne_bytes();
    message[..4].copy_from_slice(&length);
    message[4..6].copy_from_slice(&kinds.0.to_ne_bytes());
    message[6..8].copy_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    socket.send(&message, 0).ok()?;
    let (reply, _) = socket.recv_from_full().ok()?;
    let kind = u16::from_ne_bytes(reply.get(4..6)?.try_into().ok()?);
    // A reply of any other type reports an error: the requested family, interface, route or neighbour does not exist.
    (kind == kinds.1).then(|| reply.get(HEADER + head.len()..).map(<[u8]>::to_vec)).flatten()
}

/// Returns the value of an attribute from a list of attributes (`netlink(7)`).
pub(in crate::link) fn attribute(mut all: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(u16::from_ne_bytes(all.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(all.get(2..4)?.try_into().ok()?);
        let value = all.get(4..length)?;
        // The top two bits mark nested attributes and network byte order.
        if kind & 0x3fff == wanted {
            return Some(value);
        }
        all = all.get(length.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::interface::Interface;
    use dataplane_testing::namespace::{in_namespace, ip};

    #[test]
    fn next_hop_has_the_current_mac_address_of_the_gateway_or_the_host() {
        in_namespace(|| {
            ip("link add a0 type veth peer name a1
                link set a1 up
                link set a0 up
                addr add 192.0.2.1/24 dev a0
                addr add 2001:db8::1/64 dev a0 nodad
                route add 198.51.100.0/24 via 192.0.2.254 dev a0
                route add 203.0.113.0/24 via inet6 2001:db8::fd dev a0
                route add 2001:db8:1::/48 via 2001:db8::fe dev a0");
            let index = Interface::find("a0").unwrap().unwrap().index;
            let next_hop = |source: &str, destination: &str| {
                super::next_hop(index, source.parse().unwrap(), destination.parse().unwrap())
            };
            for (source, destination, hop) in [
                ("192.0.2.1", "192.0.2.9", "192.0.2.9"),
                ("192.0.2.1", "198.51.100.7", "192.0.2.254"),
                ("192.0.2.1", "203.0.113.7", "2001:db8::fd"),
                ("2001:db8::1", "2001:db8::9", "2001:db8::9"),
                ("2001:db8::1", "2001:db8:1::7", "2001:db8::fe"),
            ] {
                assert_eq!(next_hop(source, destination), None, "{destination}: the neighbour is unknown");
                for last in [1, 2] {
                    ip(&format!("neigh replace {hop} lladdr 02:00:00:00:00:0{last} dev a0"));
                    assert_eq!(next_hop(source, destination), Some([2, 0, 0, 0, 0, last]), "{destination}");
                }
            }
            assert_eq!(next_hop("2001:db8::1", "2001:db8:2::1"), None, "no route");
        });
    }

    #[test]
    fn attributes_are_found_until_a_malformed_attribute() {
        // Attribute 7 with two bytes and two bytes of padding, then attribute 9 with four bytes.
        let all = [6, 0, 7, 0, 1, 2, 0, 0, 8, 0, 9, 0, 3, 4, 5, 6].map(|byte: u8| byte);
        if cfg!(target_endian = "little") {
            assert_eq!(attribute(&all, 7), Some(&[1, 2][..]));
            assert_eq!(attribute(&all, 9), Some(&[3, 4, 5, 6][..]));
            assert_eq!(attribute(&all, 8), None);
            assert_eq!(attribute(&all[..15], 9), None, "the length exceeds the data");
            assert_eq!(attribute(&[0, 0, 7, 0], 9), None, "an attribute of length 0");
        }
    }
}
