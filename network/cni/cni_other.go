//go:build !linux

package cni

import (
	"fmt"
	"os"
)

// Main fails: the plugin runs on Linux only.
func Main() {
	fmt.Println(`{"code": 50, "msg": "the network of pods is Linux'"}`)
	os.Exit(1)
}

// LoopbackMain fails: the plugin runs on Linux only.
func LoopbackMain() { Main() }
