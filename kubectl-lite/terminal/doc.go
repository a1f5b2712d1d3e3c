// Package terminal prints for people. [Writer] and [Visible] keep text that comes from elsewhere from controlling the
// terminal (visible.go), a [Painter] colours lines that have been made visible (color.go), and a [View] keeps a picture
// on the terminal up to date (view.go). It does not know Kubernetes objects.
package terminal
