//go:build !linux

package cni

import (
	"fmt"
	"os"
)

// Main fails elsewhere than on Linux.
func Main() {
	fmt.Println(`{"code": 50, "msg": "the network of pods is Linux'"}`)
	os.Exit(1)
}

// LoopbackMain fails as Main does.
func LoopbackMain() { Main() }
