package listener

import (
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// acceptFrom attaches a filter to a socket (socket(7), SO_ATTACH_FILTER). It accepts packets that arrive by the device
// lo, or by one of the devices. All packets of the machine to its own addresses arrive by lo, and no others.
// SO_BINDTODEVICE would not do: it takes a packet to the address of another device as one of that device.
func acceptFrom(fd uintptr, devices []int) error {
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		return err
	}
	const (
		device              = 0x100000000 - 0x1000 + 8 // SKF_AD_OFF + SKF_AD_IFINDEX: the device's number
		everything, nothing = 0xffffffff, 0
	)
	filter := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: device}}
	for _, number := range append([]int{lo.Index}, devices...) {
		filter = append(filter,
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 0, Jf: 1, K: uint32(number)},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: everything})
	}
	filter = append(filter, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: nothing})
	return os.NewSyscallError("setsockopt", unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}))
}
