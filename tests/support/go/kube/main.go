// etcd and kube-apiserver, as their own main programs are, in one program: what they share is compiled and linked once.
//
//	kube etcd FLAGS...
//	kube apiserver FLAGS...
package main

import (
	"fmt"
	"os"
	_ "time/tzdata" // time zones of CronJobs

	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "etcd" {
		etcdmain.Main(os.Args[1:])
		return
	}
	if len(os.Args) > 1 && os.Args[1] == "apiserver" {
		command := app.NewAPIServerCommand()
		command.SetArgs(os.Args[2:])
		os.Exit(cli.Run(command))
	}
	fmt.Fprintln(os.Stderr, "usage: kube etcd|apiserver FLAGS...")
	os.Exit(2)
}
