// Command kubernetes is the API server and the controllers of the tests, in one program:
//
//	kubernetes kube-apiserver|kube-controller-manager FLAGS
package main

import (
	"os"

	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
)

func main() {
	os.Args = os.Args[1:]
	if os.Args[0] == "kube-apiserver" {
		os.Exit(cli.Run(apiserver.NewAPIServerCommand()))
	}
	os.Exit(cli.Run(manager.NewControllerManagerCommand()))
}
