//! Tests of ports on kernel interfaces. Each test runs in its own network namespace.

use dataplane::config::{Diagnostics, Source};
use dataplane::runtime::assemble_offline;
use dataplane::stages;
use dataplane_testing::namespace::{in_namespace, ip};

use crate::common::Folder;

/// Creates a veth pair, `va` and `vb`, with both ends up.
fn veth(mtu: u32) {
    ip(&format!("link add va mtu {mtu} type veth peer name vb mtu {mtu}\nlink set va up\nlink set vb up"));
}

/// Returns a config that sends ten frames of 9014 bytes through a port with the given keys.
fn jumbo(port: &str) -> String {
    format!(
        "[runtime]\nworkers = 1\nbuffer_size = 16384\ncontrol = \"none\"\n\
         [[port]]\nname = \"source\"\ndevice = \"soft\"\nmtu = 9000\n\
         link = {{ kind = \"generator\", size = 9014, count = 10 }}\n\
         [[port]]\nname = \"wan\"\ndevice = \"host\"\n{port}\n\
         [pipeline]\ninput = [\"source\"]\n[[pipeline.stage]]\nuse = \"tx\"\nport = \"wan\"\n"
    )
}

#[test]
fn mtu_of_the_interface_is_the_default() {
    in_namespace(|| {
        veth(9000);
        let folder = Folder::new();
        for (port, mtu) in [
            ("link = { kind = \"packet\", interface = \"va\" }", 9000),
            ("link = { kind = \"xdp\", interface = \"va\" }", 9000),
            ("link = { kind = \"tap\", name = \"va\" }", 9000),
            ("link = { kind = \"tap\", name = \"va\", mtu = 1400 }", 1400),
            ("link = { kind = \"tap\", name = \"missing\" }", 1500),
            ("mtu = 1300\nlink = { kind = \"packet\", interface = \"va\" }", 1300),
        ] {
            let assembly = folder.assemble(&jumbo(port)).unwrap();
            let shown = assembly.plan.to_string();
            assert_eq!((assembly.plan.ports[1].config.mtu, assembly.ports[1].mtu), (Some(mtu), mtu as u16), "{port}");
            assert!(shown.contains(&format!(", raw_packet, mtu {mtu}, ")), "{shown}");
        }
    });
}

#[test]
fn port_sends_frames_up_to_the_mtu_of_its_interface() {
    in_namespace(|| {
        veth(9000);
        let link = "link = { kind = \"packet\", interface = \"va\" }";
        let folder = Folder::new();
        assert_eq!(folder.run(&jumbo(link)).packets.tx, 10);
        assert_eq!(folder.run(&jumbo(&format!("mtu = 1500\n{link}"))).packets.tx, 0);
    });
}

#[test]
fn buffers_that_are_too_small_for_the_interface_are_a_mistake() {
    in_namespace(|| {
        veth(9000);
        let config = jumbo("link = { kind = \"packet\", interface = \"va\" }");
        let config = config.replace("mtu = 9000\n", "").replace("size = 9014", "size = 64").replace("16384", "2048");
        let mistakes = Folder::new().assemble(&config).err().unwrap();
        assert!(
            mistakes.contains("a packet of `wan` has up to 9022 bytes, but a buffer holds only 1920"),
            "{mistakes}"
        );
        assert!(
            mistakes.contains("set mtu = 1500 for the port, or buffer_size in [runtime] to at least 9150"),
            "{mistakes}"
        );
        assert!(mistakes.contains("(the interface of the port has an MTU of 9000)"), "{mistakes}");
        // The MTU of `lo` is 65536, which is more than the maximum MTU of a port.
        let mistakes = Folder::new().assemble(&config.replace("\"va\"", "\"lo\"")).err().unwrap();
        assert!(mistakes.contains(
            "up to 65022 bytes, but a buffer holds only 1920 (the interface of the port has an MTU of 65536)"
        ));
        // The commands `graph` and `explain` use `assemble_offline`, which reads no interface. The config is therefore
        // valid for these commands on every host.
        let source = Source::new("jumbo.toml", config.as_str(), &[]);
        let mut diagnostics = Diagnostics::new(&source);
        let assembly = assemble_offline(&source, &stages::registry(), &mut diagnostics).unwrap();
        assert!(assembly.is_some(), "{}", diagnostics.render(false));
    });
}
