package podnetwork

import (
	"errors"
	"io/fs"

	"github.com/coxswain-dev/coxswain/network/netns"
	"github.com/coxswain-dev/coxswain/network/nft"
)

// Unsupported returns an error if this machine does not allow network namespaces or has no nftables, so that a test
// must be skipped. It returns nil if they are there but fail, as the test will then.
func Unsupported() error {
	f, err := netns.New()
	if err == nil {
		defer f.Close()
		err = nft.Supported(f)
	}
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	return nil
}
