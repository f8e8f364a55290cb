//! Netlink requests to the kernel (`netlink(7)`). Each request has one reply.

use netlink_sys::protocols::{NETLINK_GENERIC, NETLINK_ROUTE};
use netlink_sys::{Socket, SocketAddr};

/// `GENL_ID_CTRL`, `CTRL_CMD_GETFAMILY`, `CTRL_ATTR_FAMILY_ID`, `CTRL_ATTR_FAMILY_NAME` (linux/genetlink.h).
const CONTROL: (u16, u8, u16, u16) = (0x10, 3, 1, 2);
/// `NETDEV_CMD_DEV_GET` and `NETDEV_A_DEV_IFINDEX` (linux/netdev.h).
const NETDEV: (u8, u16) = (1, 1);

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
    netlink_request(&socket, (libc::RTM_GETLINK, libc::RTM_NEWLINK), &head, None)
}

fn connect(protocol: isize) -> Option<Socket> {
    let socket = Socket::new(protocol).ok()?;
    socket.connect(&SocketAddr::new(0, 0)).ok()?;
    Some(socket)
}

/// Sends a generic netlink request with one attribute. Returns the attributes of the reply.
fn genl_request(socket: &Socket, family: u16, command: u8, attribute: u16, value: &[u8]) -> Option<Vec<u8>> {
    netlink_request(socket, (family, family), &[command, 1, 0, 0], Some((attribute, value)))
}

/// Size of a netlink message header, in bytes.
const HEADER: usize = 16;

/// Sends a netlink request (`netlink(7)`), and returns the attributes of the reply. `kinds` are the message types of
/// the request and of the reply. `head` is the part of the request between the netlink header and the attributes. The
/// reply has a head of the same size. `ask` is the number and the value of the attribute in the request, or `None` for
/// a request without attributes.
fn netlink_request(socket: &Socket, kinds: (u16, u16), head: &[u8], ask: Option<(u16, &[u8])>) -> Option<Vec<u8>> {
    let mut message = vec![0; HEADER];
    message.extend(head);
    if let Some((attribute, value)) = ask {
        message.extend((4 + value.len() as u16).to_ne_bytes());
        message.extend(attribute.to_ne_bytes());
        message.extend(value);
        message.resize(message.len().next_multiple_of(4), 0);
    }
    let length = (message.len() as u32).to_ne_bytes();
    message[..4].copy_from_slice(&length);
    message[4..6].copy_from_slice(&kinds.0.to_ne_bytes());
    message[6..8].copy_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    socket.send(&message, 0).ok()?;
    let (reply, _) = socket.recv_from_full().ok()?;
    let kind = u16::from_ne_bytes(reply.get(4..6)?.try_into().ok()?);
    // A reply of any other type reports an error: the family or the interface does not exist.
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
